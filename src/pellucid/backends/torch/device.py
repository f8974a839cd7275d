"""The device that PyTorch computes on: which one, its memory, its bandwidth and its peaks."""

import importlib.util
import time
from collections.abc import Callable

import torch

from pellucid.backends.torch.nvml import find_facts
from pellucid.facts.host_memory import available_memory
from pellucid.facts.machine import Machine

KINDS = ("cuda", "xpu", "mps", "cpu")  # in the order in which "auto" looks for them

_COPY_BYTES, _PRODUCT_WIDTH = 256 << 20, 4096
_CPU_COPY_BYTES, _CPU_PRODUCT_WIDTH = 64 << 20, 512  # a host is slower, and has less to spare
_REPETITIONS = 3


def find_device(name: str) -> torch.device:
    """The device of `EngineConfig.device`.

    Raises:
        ValueError: there is none; says what to do.
    """
    if name == "auto":
        return torch.device(next(kind for kind in KINDS if has_device(kind)))
    if (reason := _why_not(name)) is not None:
        raise ValueError(f"device={name!r}: {reason}; device='auto' takes what there is")
    return torch.device(name)


def has_device(kind: str) -> bool:
    """Whether PyTorch can compute on a device of this kind."""
    return _why_not(kind) is None


def _why_not(kind: str) -> str | None:
    """Why PyTorch cannot compute there; None: it can."""
    match kind:
        case "cuda":
            if torch.version.cuda is None and torch.version.hip is None:
                return (
                    f"PyTorch {torch.__version__} is built without CUDA and ROCm: install the build that"
                    " https://pytorch.org/get-started names for this machine"
                )
            if not torch.cuda.is_available():
                return (
                    "PyTorch finds no GPU, or a driver that is too old for"
                    f" CUDA {torch.version.cuda or torch.version.hip}: nvidia-smi says which one is installed"
                )
        case "xpu":
            if not torch.xpu.is_available():
                return "PyTorch finds no Intel GPU, or is built without XPU"
        case "mps":
            if not torch.backends.mps.is_available():
                return "PyTorch finds no Apple GPU: it needs macOS on Apple silicon"
    return None


def has_doubles(device: torch.device) -> bool:
    """Whether it computes in f64, as a draw does: Apple's GPUs and some of Intel's do not."""
    try:
        torch.ones(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return False
    return True


def has_triton() -> bool:
    """Whether the kernels in Triton can be imported: PyTorch for CUDA on Linux brings it."""
    return importlib.util.find_spec("triton") is not None


def device_memory(device: torch.device) -> int | None:
    """Bytes that can be taken now where tensors lie; None: the system does not report it."""
    match device.type:
        case "cuda":
            return _beside_cache(torch.cuda.mem_get_info(), torch.cuda)
        case "xpu":
            return _beside_cache(torch.xpu.mem_get_info(), torch.xpu)
        case "mps":
            free = int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
            return max(0, min(free, available_memory() or free))
    return available_memory()


def _beside_cache(info: tuple[int, int], memory: object) -> int:
    """Free bytes of the device, and those that PyTorch keeps for its next tensors."""
    reserved: int = memory.memory_reserved()  # type: ignore[attr-defined]
    allocated: int = memory.memory_allocated()  # type: ignore[attr-defined]
    return info[0] + reserved - allocated


def device_name(device: torch.device) -> str:
    """The chip, as its maker calls it."""
    match device.type:
        case "cuda":
            return str(torch.cuda.get_device_name())
        case "xpu":
            return str(torch.xpu.get_device_name())
    return str(device.type)


def device_identity(device: torch.device) -> str:
    """What the bits of a product depend on besides its operands: PyTorch, its libraries, the chip."""
    kernels = {
        "cuda": f"{torch.version.cuda or torch.version.hip}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    return " ".join((torch.__version__, device_name(device), kernels.get(device.type, "")))


def measure_device(device: torch.device, has_kernels: bool) -> Machine:
    """The ceilings of a device: how fast it reads memory, and multiplies in each arithmetic that PyTorch has there.

    Args:
        has_kernels: whether codes are multiplied as bf16; else as f32.
    """
    is_host = device.type == "cpu"
    num_bytes = _CPU_COPY_BYTES if is_host else _COPY_BYTES
    width = _CPU_PRODUCT_WIDTH if is_host else _PRODUCT_WIDTH
    numbers = torch.ones(num_bytes // 4, device=device)
    bandwidth = num_bytes / _seconds(lambda: numbers.amax(), device)
    flops = []
    for dtype in (torch.bfloat16, torch.float32):
        square = torch.ones((width, width), dtype=dtype, device=device)
        flops.append(2 * width**3 / _seconds(lambda square=square: square @ square, device))  # type: ignore[misc]
    bf16, f32 = flops
    return Machine(
        isa=f"torch {device_name(device)}",
        num_threads=torch.get_num_threads(),
        bandwidth_bytes_per_second=bandwidth,
        peak_int8_ops=bf16 if has_kernels else f32,
        peak_bf16_flops=bf16,
        peak_f32_flops=f32,
        device=find_facts(device),
    )


def _seconds(run: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Of the fastest run, after one that warms up."""
    seconds = []
    for _ in range(_REPETITIONS + 1):
        started = time.perf_counter()
        run().reshape(-1)[:1].cpu()  # waits for the device
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
