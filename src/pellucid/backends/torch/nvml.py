"""What NVIDIA's management library says of a GPU, where its package (nvidia-ml-py) is installed."""

import importlib
from contextlib import suppress
from typing import Any

import torch

from pellucid.facts.machine import DeviceFacts


def find_facts(device: torch.device) -> DeviceFacts | None:
    """None: the host computes."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return DeviceFacts(str(device.type))
    properties = torch.cuda.get_device_properties(device)
    with suppress(ImportError):
        library = importlib.import_module("pynvml")
        with suppress(library.NVMLError):  # ROCm, or a library that does not fit the driver
            return nvml_facts(library, str(properties.uuid))
    return DeviceFacts(str(properties.name), memory_bytes=int(properties.total_memory))


def nvml_facts(library: Any, uuid: str) -> DeviceFacts:
    """The facts of the GPU that PyTorch calls by this UUID.

    Args:
        library: the module pynvml.

    Raises:
        library.NVMLError: there is no such GPU, or no driver.
    """
    library.nvmlInit()
    try:
        handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        megahertz = _found(
            library, library.nvmlDeviceGetMaxClockInfo, handle, library.NVML_CLOCK_SM
        )
        milliwatts = _found(library, library.nvmlDeviceGetEnforcedPowerLimit, handle)
        return DeviceFacts(
            _text(library.nvmlDeviceGetName(handle)),
            _text(library.nvmlSystemGetDriverVersion()),
            int(library.nvmlDeviceGetMemoryInfo(handle).total),
            None if milliwatts is None else milliwatts / 1e3,
            None if megahertz is None else megahertz * 1e6,
        )
    finally:
        library.nvmlShutdown()


def _found(library: Any, ask: Any, *args: Any) -> Any:
    """None: this GPU does not tell."""
    with suppress(library.NVMLError):
        return ask(*args)
    return None


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name  # bytes until version 11.5
