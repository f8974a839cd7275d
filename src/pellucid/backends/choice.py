"""Chooses the backend that an EngineConfig asks for."""

import os
import warnings
from importlib.util import find_spec
from pathlib import Path

from pellucid.backends.base import Backend
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig

# Forces a level of the native kernels: "amx", "avx512", "avx2", "neon" or "portable".
ISA_VARIABLE = "PELLUCID_ISA"

# Where Linux has the drivers of NVIDIA's and of AMD's GPUs, and WSL those of Windows.
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

HUGE_PAGES_ARE_OFF = (
    "transparent huge pages are switched off: the processor looks up the address of every 4 KiB of"
    " weights, and decoding takes a fifth to a half longer; to switch them on for programs that ask:"
    " echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
)


def make_backend(
    config: EngineConfig, model: ModelConfig | None = None, *, is_planned: bool = False
) -> Backend:
    """The backend that `config` asks for. With "auto", a RuntimeWarning says why it is not the native one.

    Args:
        config: `backend`, `device`, `num_threads`, `quantize_activations`, `experts`, and what bounds a step's tokens
            matter.
        model: the model to run, because native kernels do not support every shape; None: any model.
        is_planned: whether the backend is only asked what a model takes; no other process is needed then.

    Raises:
        ValueError: this machine or this build does not support a setting.
    """
    if config.experts == "mapped" and model is not None and not _has_experts(model):
        raise ValueError(f"experts='mapped': {model.architecture} has no experts")
    isa = os.environ.get(ISA_VARIABLE, "")
    if _computes_on_torch(config):
        return _make_torch_backend(config, isa)
    if config.backend == "cpu":
        return _make_cpu_backend(config, model, isa, is_planned)
    if config.backend == "auto":
        if (reason := _why_not_native(model, isa)) is None:
            return _make_cpu_backend(config, model, isa, is_planned)
        warnings.warn(
            f"backend='auto': {reason}: NumPy computes instead, many times slower",
            RuntimeWarning,
            stacklevel=2,
        )
    _refuse_settings_of_native_kernels(config)
    _check_threads(config.num_threads, os.cpu_count() or 1)
    # Imported here: native kernels need neither.
    from threadpoolctl import threadpool_limits

    from pellucid.backends.numpy.backend import NumpyBackend

    # One setting for the whole process: a BLAS has a single pool. The products here are small, and a
    # second thread costs more than it gains unless the machine is idle, so one thread is the default.
    threadpool_limits(config.num_threads or 1, user_api="blas")
    return NumpyBackend(quantize_activations=config.quantize_activations)


def _computes_on_torch(config: EngineConfig) -> bool:
    """Whether PyTorch computes. It is imported to look for a GPU only where the system has one."""
    if config.backend != "auto" or config.device != "auto":
        return config.backend == "torch" or config.device not in ("auto", "cpu")
    if not any(Path(driver).exists() for driver in GPU_DRIVERS) or find_spec("torch") is None:
        return False
    from pellucid.backends.torch.device import has_device

    return has_device("cuda")


def _make_torch_backend(config: EngineConfig, isa: str) -> Backend:
    if find_spec("torch") is None:
        raise ValueError(
            f"backend={config.backend!r}, device={config.device!r}: PyTorch is not installed; pip install"
            " 'pellucid[torch]' brings it"
        )
    _refuse_settings_of_native_kernels(config)
    from pellucid.backends.torch.backend import TorchBackend

    _check_threads(config.num_threads, os.cpu_count() or 1)
    if _why_not_native(None, isa) is not None:
        return TorchBackend(config.device, config.num_threads)
    from pellucid.backends.cpu.backend import CpuBackend
    from pellucid.backends.native import cpu_info

    host = CpuBackend(config.num_threads or cpu_info().num_threads, isa)
    return TorchBackend(config.device, config.num_threads, host.weights.quantize)


def _refuse_settings_of_native_kernels(config: EngineConfig) -> None:
    if config.experts == "mapped":
        raise ValueError(
            "experts='mapped': needs backend='cpu', whose kernels read experts from a file"
        )
    if (num_ranks := config.tensor_parallel_size) > 1:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: needs backend='cpu', whose steps exchange what they compute"
        )


def _has_experts(model: ModelConfig) -> bool:
    return any(layer.experts is not None for layer in model.layers)


def _why_not_native(model: ModelConfig | None, isa: str) -> str | None:
    """Why native kernels are not chosen; None if they are. Portable kernels are chosen only on request."""
    try:
        from pellucid.backends.cpu.backend import unsupported_shape
        from pellucid.backends.native import kernel_levels
    except ModuleNotFoundError as error:
        return str(error)
    if not isa and kernel_levels() == ["portable"]:
        return (
            "this processor lacks AVX2, FMA and F16C, or on Arm dot products, without which native "
            "kernels are slower than NumPy"
        )
    return None if model is None else unsupported_shape(model)


def _check_threads(num_threads: int | None, num_logical_cpus: int) -> None:
    if num_threads is not None and num_threads > num_logical_cpus:
        raise ValueError(
            f"num_threads={num_threads}: this machine has {num_logical_cpus} logical CPUs"
        )


def _make_cpu_backend(
    config: EngineConfig, model: ModelConfig | None, isa: str, is_planned: bool
) -> Backend:
    from pellucid.backends.cpu.backend import MAX_ROWS, CpuBackend
    from pellucid.backends.native import cpu_info

    ranks = None
    if config.tensor_parallel_size > 1:  # before cores are counted
        from pellucid.backends.cpu.ranks import join_ranks, planned_ranks

        find_ranks = planned_ranks if is_planned else join_ranks
        ranks = find_ranks(config.tensor_parallel_size)
    info = cpu_info()
    num_threads = config.num_threads or info.num_threads
    _check_threads(num_threads, info.num_logical_cpus)
    if num_threads > info.num_threads:
        warnings.warn(
            f"num_threads={num_threads}: more than the {info.num_threads} that this process may keep"
            f" busy ({info.thread_limit}); threads will wait for each other",
            RuntimeWarning,
            stacklevel=3,
        )
    if info.huge_pages is False:
        warnings.warn(HUGE_PAGES_ARE_OFF, RuntimeWarning, stacklevel=3)
    max_rows = MAX_ROWS if model is None else config.max_step_tokens(model.context_length)
    return CpuBackend(
        num_threads,
        isa,
        config.quantize_activations,
        max_rows=min(MAX_ROWS, max_rows),
        maps_experts=config.experts == "mapped",
        yields_cores=config.num_threads is None,
        ranks=ranks,
    )
