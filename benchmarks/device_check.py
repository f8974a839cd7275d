"""What a device does with the backend on PyTorch: exactness, then speed. No network; without a GPU it checks the host.

    python benchmarks/device_check.py                         all parts, 10 minutes at most
    python benchmarks/device_check.py --device cuda --parts rows products --minutes 5
    python benchmarks/device_check.py --json there.json

Each part is a process with a share of the time, so one that fails or hangs leaves the others whole. A table is last.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROW_COUNTS = (1, 2, 7, 16, 64, 257, 2048)
FORMATS = ("bf16", "int8", "int4")
# Outputs and inputs of the widest matrices of Qwen3 0.6B, 1.7B and 8B.
PRODUCTS = {"0.6B": (6144, 1024), "1.7B": (12288, 2048), "8B": (24576, 4096)}
DEPTHS = (512, 8192)  # keys that one query of an 8B attends to
SHAPES = ("smollm2-135m", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b")
WORKLOADS = (
    "--prompt",
    "512,2048",
    "--gen",
    "16",
    "--batch",
    "1,8,32",
    "--depth",
    "0",
    "--repetitions",
    "2",
)
REPETITIONS = 5


class Row(NamedTuple):
    """A line of the table."""

    part: str
    what: str
    found: str


def tests(device: str) -> Iterator[Row]:
    """All tests of tests/device, on the device."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/device")
    environment = os.environ | {"PELLUCID_TEST_DEVICE": device}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    yield Row("tests", "tests/device", lines[-1] if lines else done.stderr.strip()[-200:])
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            yield Row("tests", "", line)


def ceilings(device: str) -> Iterator[Row]:
    """The machine, its memory and its ceilings."""
    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    machine = backend.measure(None)
    yield Row("machine", "identity", backend.identity)
    yield Row("machine", "free memory", f"{(backend.available_memory() or 0) / 1e9:.1f} GB")
    yield Row("machine", "bandwidth", f"{machine.bandwidth_bytes_per_second / 1e9:.3g} GB/s")
    yield Row("machine", "peak in bf16", f"{machine.peak_bf16_flops / 1e12:.3g} TFLOP/s")
    yield Row("machine", "peak in f32", f"{machine.peak_f32_flops / 1e12:.3g} TFLOP/s")


def rows(device: str) -> Iterator[Row]:
    """Whether rows have the same bits in steps of each number of rows."""
    import numpy as np
    import torch

    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    rng = np.random.default_rng(0)
    num_outputs, num_inputs = PRODUCTS["0.6B"]
    weight = rng.standard_normal((num_outputs, num_inputs)).astype(np.float32)
    x = backend.ops.from_host(rng.standard_normal((ROW_COUNTS[-1], num_inputs)).astype(np.float32))
    for name in FORMATS:
        handle = backend.weights.matrix(_stored(backend, weight, name))
        whole = backend.ops.linear(x, handle)
        wrong = [
            count
            for count in ROW_COUNTS
            if not torch.equal(backend.ops.linear(x[-count:], handle), whole[-count:])
        ]
        yield Row("rows", f"linear, {name}", f"other bits at {wrong}" if wrong else "same bits")
    norm = backend.weights.vector(weight[0])
    whole = backend.ops.rms_norm(x, norm, 1e-6)
    wrong = [
        n
        for n in ROW_COUNTS
        if not torch.equal(backend.ops.rms_norm(x[-n:], norm, 1e-6), whole[-n:])
    ]
    yield Row("rows", "rms_norm", f"other bits at {wrong}" if wrong else "same bits")


def products(device: str) -> Iterator[Row]:
    """Products of one row and of 64, as shares of the device's bandwidth, beside the library's own in bf16."""
    import numpy as np
    import torch

    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    bandwidth = backend.measure(None).bandwidth_bytes_per_second
    rng = np.random.default_rng(0)
    for size, (num_outputs, num_inputs) in PRODUCTS.items():
        weight = rng.standard_normal((num_outputs, num_inputs), np.float32)
        library = backend.ops.from_host(weight).to(torch.bfloat16)
        for num_rows in (1, 64):
            x = backend.ops.from_host(rng.standard_normal((num_rows, num_inputs), np.float32))
            half = x.to(torch.bfloat16)
            seconds = _seconds(lambda half=half, library=library: half @ library.t())
            found = _product(seconds, library.nbytes, bandwidth)
            yield Row("products", f"{size}, {num_rows} rows, library in bf16", found)
            for name in FORMATS:
                stored = _stored(backend, weight, name)
                handle = backend.weights.matrix(stored)
                num_bytes = getattr(stored, "num_bytes", getattr(stored, "nbytes", 0))
                seconds = _seconds(lambda x=x, handle=handle: backend.ops.linear(x, handle))
                found = _product(seconds, num_bytes, bandwidth)
                yield Row("products", f"{size}, {num_rows} rows, {name}", found)


def engine(device: str) -> Iterator[Row]:
    """Engines on random weights, the smallest model first: prompts, decode of 1, 8 and 32 sequences."""
    for shape in SHAPES:
        for quantization in ("none", "int8", "int4"):
            options = (
                "--shape",
                shape,
                "--quantization",
                quantization,
                "--backend",
                "torch",
                "--device",
                device,
            )
            command = (sys.executable, "-m", "pellucid", "bench", *options, *WORKLOADS, "--json")
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            what = f"{shape}, {quantization}"
            if done.returncode:
                yield Row("engine", what, done.stderr.strip().splitlines()[-1])
                continue
            for each in json.loads(done.stdout):
                if "test" in each:
                    share = f"{each['bandwidth_share']:.0%} of bandwidth, {each['peak_share']:.0%} of peak"
                    found = f"{each['tokens_per_second']:.1f} tok/s, {share}"
                    yield Row("engine", f"{what}, {each['test']}", found)


def _stored(backend: object, weight: object, name: str) -> object:
    import ml_dtypes

    from pellucid.backends.quantization.formats import FORMATS as INTEGERS

    if name in INTEGERS:
        return backend.weights.quantize(weight, INTEGERS[name])  # type: ignore[attr-defined]
    return weight.astype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]


def _seconds(run: Callable[[], object]) -> float:
    """Of the fastest run, after one that warms up."""
    seconds = []
    for _ in range(REPETITIONS + 1):
        started = time.perf_counter()
        run()[:1, :1].cpu()  # type: ignore[index]  # waits for the device
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def _product(seconds: float, num_bytes: int, bandwidth: float) -> str:
    return f"{seconds * 1e6:.0f} us, {num_bytes / seconds / bandwidth:.0%} of bandwidth"


# In order, each with its share of the time.
PARTS: dict[str, tuple[Callable[[str], Iterator[Row]], float]] = {
    "ceilings": (ceilings, 0.05),
    "rows": (rows, 0.1),
    "tests": (tests, 0.45),
    "products": (products, 0.1),
    "engine": (engine, 0.3),
}


def run_part(name: str, device: str, seconds: float) -> list[Row]:
    """A part in a process of its own: its lines so far, and why it ended early."""
    command = (sys.executable, __file__, "--device", device, "--only", name)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
            end = "" if process.returncode == 0 else err.strip().splitlines()[-1][:200]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, _ = process.communicate()
            end = f"ended after its {seconds:.0f} s"
    found = [Row(*json.loads(line)) for line in out.splitlines() if line.startswith("[")]
    return [*found, Row(name, "", end)] if end else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="auto", help="as of `pellucid run`")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="also writes the table there")
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only is not None:
        from pellucid.backends.torch.device import find_device

        for row in PARTS[given.only][0](find_device(given.device).type):
            print(json.dumps(row), flush=True)
        return
    whole = sum(PARTS[name][1] for name in given.parts)
    table: list[Row] = []
    for name in given.parts:
        print(f"{name} ...", file=sys.stderr)
        table += run_part(name, given.device, 60 * given.minutes * PARTS[name][1] / whole)
    for row in table:
        print(f"{row.part:10}{row.what:40}{row.found}")
    if given.json is not None:
        given.json.write_text(json.dumps([row._asdict() for row in table], indent=1))


if __name__ == "__main__":
    main()
