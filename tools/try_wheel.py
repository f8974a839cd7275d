"""Installs a wheel in an environment without a compiler, and runs the bundled model with it.

    python tools/try_wheel.py dist/pellucid-*.whl     in a new environment
    python tools/try_wheel.py                         what is installed in this environment

Fails if anything had to be compiled, if the native kernels do not run, or if the answer is another one.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TRY = """
import sys
from pathlib import Path
import pellucid
from pellucid import LLM, SamplingParams

assert Path(sys.prefix) in Path(pellucid.__file__).parents, pellucid.__file__
llm = LLM(backend="cpu")
params = SamplingParams(temperature=0, max_tokens=3)
[output] = llm.generate("The capital of Peru is", params)
assert output.outputs[0].text == " Lima.", output.outputs[0].text
assert (Path(pellucid.__file__).parent / "py.typed").exists()
print("pellucid", pellucid.__version__, "runs on", sys.version.split()[0])
"""


def try_installed(python: Path, directory: Path, environment: dict[str, str]) -> None:
    """Runs the bundled model by the API and by the command, away from any source tree."""
    subprocess.run([python, "-c", TRY], check=True, cwd=directory, env=environment)
    command = [python.with_name("pellucid"), "run", "--raw", "The capital of Peru is"]
    command += ["--temperature", "0", "--max-tokens", "3", "-q"]
    ran = subprocess.run(
        command, check=True, cwd=directory, env=environment, capture_output=True, text=True
    )
    assert "Lima." in ran.stdout, ran.stdout


def without_compilers(directory: Path) -> dict[str, str]:
    """An environment in which PATH leads to the new environment's own programs only."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    environment["PATH"] = str(directory / "bin")
    environment.pop("PYTHONPATH", None)
    return environment


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if len(sys.argv) == 1:
            try_installed(Path(sys.executable), directory, dict(os.environ))
            return
        [wheel] = [Path(argument).resolve() for argument in sys.argv[1:]]
        venv.create(directory, with_pip=True)
        python = directory / "bin/python"
        environment = without_compilers(directory)
        for compiler in ("cc", "c++", "gcc", "g++", "clang", "cmake", "ninja"):
            assert not (directory / "bin" / compiler).exists()
        command = [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", wheel]
        subprocess.run(command, check=True, cwd=directory, env=environment)
        try_installed(python, directory, environment)
        print(f"{wheel.name}: installed and run without a compiler")


if __name__ == "__main__":
    main()
