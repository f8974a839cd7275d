"""Measures the machine with our own kernels and threads."""

from pellucid.backends.base import Backend
from pellucid.backends.native import ThreadPool, find_kernels, measure_roofline
from pellucid.benchmark.machine import Machine


def measure_machine(backend: Backend, num_threads: int | None) -> Machine:
    """Measures the ceilings for code that runs on `backend`. Takes a second or two, and a quarter of a gigabyte.

    Args:
        backend: one with native threads is measured with these and their instructions.
        num_threads: of another backend; None: one, as the NumPy backend uses by default.
    """
    kernels, pool = backend.native_threads or (find_kernels(), ThreadPool(num_threads or 1))
    roofline = measure_roofline(kernels, pool)
    return Machine(
        isa=kernels.isa,
        num_threads=pool.num_threads,
        bandwidth_bytes_per_second=roofline.read_bytes_per_second,
        peak_int8_ops=roofline.int8_ops_per_second,
        peak_bf16_flops=roofline.bf16_flops_per_second,
        peak_f32_flops=roofline.f32_flops_per_second,
    )
