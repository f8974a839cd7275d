"""
pellucid's native kernels and what they need to know about the machine.
"""

from typing import Literal


class CacheLevel:
    """One data or unified cache of a CPU."""

    @property
    def level(self) -> int:
        """1 for L1d, 2 for L2, 3 for L3."""

    @property
    def size_bytes(self) -> int:
        """Bytes in one instance of this cache."""

    @property
    def num_sharing_cpus(self) -> int:
        """Logical CPUs that share one instance."""

    def __repr__(self) -> str: ...

class CpuInfo:
    """
    What this process may use of the processor, read when cpu_info() is called.
    """

    @property
    def features(self) -> frozenset[str]:
        """
        Instruction set extensions that processor and operating system both support, by Linux's names on x86 ("avx2", "avx512_vnni") and as "neon", "dotprod", "i8mm", "bf16", "fp16", "sve" on Arm.
        """

    @property
    def caches(self) -> tuple[CacheLevel, ...]:
        """
        Data and unified caches of one CPU, L1 first; empty if the system hides them.
        """

    @property
    def num_logical_cpus(self) -> int:
        """Logical CPUs online in the machine."""

    @property
    def num_physical_cores(self) -> int:
        """Distinct cores among the logical CPUs of the machine."""

    @property
    def num_allowed_cpus(self) -> int:
        """Logical CPUs in the calling thread's affinity mask."""

    @property
    def num_allowed_cores(self) -> int:
        """Distinct cores in the affinity mask (macOS: the fast cores)."""

    @property
    def cpu_quota(self) -> float | None:
        """
        CPUs' worth of time that the process's cgroups grant, the tightest limit on the way to the root (1.5 is 150 ms in each 100 ms); None without a limit.
        """

    @property
    def num_threads(self) -> int:
        """
        Compute threads to start: min(num_allowed_cores, ceil(cpu_quota)), at least 1.
        """

    @property
    def thread_limit(self) -> Literal['cores', 'affinity', 'quota']:
        """
        What num_threads is bounded by: the machine's cores, the affinity mask or the quota.
        """

    def __repr__(self) -> str: ...

def cpu_info(root: str = '') -> CpuInfo:
    """
    Look at the processor, the affinity mask and the cgroups as they are now. `root` stands in front of every path read below /proc and /sys, so that tests can describe a machine.
    """
