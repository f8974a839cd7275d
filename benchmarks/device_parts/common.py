"""What the parts of `device_check.py` share: lines of the table, shapes, times."""

import time
from collections.abc import Callable
from typing import NamedTuple

FORMATS = ("bf16", "int8", "int4")
# Outputs and inputs of the widest matrices of Qwen3 0.6B, 1.7B and 8B.
PRODUCTS = {"0.6B": (6144, 1024), "1.7B": (12288, 2048), "8B": (24576, 4096)}
_REPETITIONS = 5


class Row(NamedTuple):
    """A line of the table."""

    part: str
    what: str
    found: str


def stored(backend: object, weight: object, name: str) -> object:
    import ml_dtypes

    from pellucid.backends.quantization.formats import FORMATS as INTEGERS

    if name in INTEGERS:
        return backend.weights.quantize(weight, INTEGERS[name])  # type: ignore[attr-defined]
    return weight.astype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]


def seconds_of(run: Callable[[], object]) -> float:
    """Of the fastest run, after one that warms up."""
    seconds = []
    for _ in range(_REPETITIONS + 1):
        started = time.perf_counter()
        run()[:1, :1].cpu()  # type: ignore[index]  # waits for the device
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def as_share(seconds: float, num_bytes: int, bandwidth: float) -> str:
    return f"{seconds * 1e6:.0f} us, {num_bytes / seconds / bandwidth:.0%} of bandwidth"
