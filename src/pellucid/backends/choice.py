"""Which backend an EngineConfig gets."""

import os
import warnings

from threadpoolctl import threadpool_limits

from pellucid.backends.base import Backend
from pellucid.backends.numpy_backend import NumpyBackend
from pellucid.config import EngineConfig

# Forces a level of the native kernels: "avx512", "avx2", "neon" or "portable".
ISA_VARIABLE = "PELLUCID_ISA"


def make_backend(config: EngineConfig, isa: str | None = None) -> Backend:
    """The backend that `config` asks for.

    Args:
        config: `backend`, `num_threads`, `quantize_activations`, `max_num_batched_tokens` matter.
        isa: level of the native kernels, for tests; None: as the variable PELLUCID_ISA says, else the best.

    Raises:
        ValueError: a knob asks for what this machine or this build does not have.
    """
    isa = os.environ.get(ISA_VARIABLE, "") if isa is None else isa
    if config.backend == "cpu" or (config.backend == "auto" and _has_native_kernels(isa)):
        return _make_cpu_backend(config, isa)
    # One setting for the whole process: a BLAS has a single pool. The products here are small, and a
    # second thread costs more than it gives unless the machine is idle, so it has to be asked for.
    threadpool_limits(config.num_threads or 1, user_api="blas")
    return NumpyBackend(quantize_activations=config.quantize_activations)


def _has_native_kernels(isa: str) -> bool:
    """Whether kernels for this machine are built that beat NumPy: the portable ones do when asked for."""
    try:
        from pellucid.backends.native import kernel_levels
    except ModuleNotFoundError:
        return False
    return bool(isa) or kernel_levels() != ["portable"]


def _make_cpu_backend(config: EngineConfig, isa: str) -> Backend:
    from pellucid.backends.cpu_backend import MAX_ROWS, CpuBackend
    from pellucid.backends.native import cpu_info

    info = cpu_info()
    num_threads = config.num_threads or info.num_threads
    if num_threads > info.num_logical_cpus:
        raise ValueError(
            f"num_threads={num_threads}: this machine has {info.num_logical_cpus} logical CPUs"
        )
    if num_threads > info.num_threads:
        warnings.warn(
            f"num_threads={num_threads}: more than the {info.num_threads} that this process may keep"
            f" busy ({info.thread_limit}); threads will wait for each other",
            RuntimeWarning,
            stacklevel=2,
        )
    return CpuBackend(
        num_threads,
        isa,
        config.quantize_activations,
        max_rows=min(MAX_ROWS, config.max_num_batched_tokens),
    )
