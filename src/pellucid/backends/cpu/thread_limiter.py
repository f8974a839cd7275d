"""Lowers the number of compute threads while the process may use fewer cores, or while others use them."""

import time
import warnings
from collections.abc import Callable

from pellucid.backends.base import ThreadUse
from pellucid.backends.native import ThreadPool, cpu_info

# Reading the affinity mask and the cgroups takes some 100 microseconds.
SECONDS_BETWEEN_LOOKS = 5.0
# Reading how busy the machine is takes 30 microseconds with two CPUs, and a millisecond with hundreds.
SECONDS_BETWEEN_MEASUREMENTS = 0.5
# A thread has a core if others use less than this share of it. Beside one program that never waits, two threads on
# two cores leave it 0.67 cores.
OTHERS_SHARE = 0.5


def count_usable_threads() -> int:
    """How many threads this process may keep busy now."""
    return cpu_info().num_threads


class ThreadLimiter:
    """Resizes a pool when an affinity mask or a container's CPU quota changes while the process runs, and when other
    programs take cores.

    Threads that share a core wait for each other at every barrier: a thread that the system has taken from its core
    comes back milliseconds later, and a step of a small model has hundreds of barriers in a millisecond. A pool that
    was made with more threads than the process could use stays as it is until the limit falls.

    Args:
        pool: at its full size.
        count_usable: how many threads the process may keep busy.
        clock: seconds.
        free_cores: how many cores other programs have left since the last call, None where nobody knows; left out,
            other programs change nothing.
    """

    def __init__(
        self,
        pool: ThreadPool,
        count_usable: Callable[[], int] = count_usable_threads,
        clock: Callable[[], float] = time.monotonic,
        free_cores: Callable[[], float | None] | None = None,
    ) -> None:
        self._pool = pool
        self._count_usable = count_usable
        self._clock = clock
        self._free_cores = free_cores
        self._num_usable_at_start = count_usable()
        self._most = pool.max_threads  # by the limits of this process
        self._next_look = clock() + SECONDS_BETWEEN_LOOKS
        self._next_measurement = clock()

    @property
    def use(self) -> ThreadUse:
        """The threads of the next step."""
        return ThreadUse(self._most, self._pool.num_threads)

    def update(self) -> None:
        """Before each step: measures how busy the machine is, and reads the limits every few seconds. A RuntimeWarning
        says when the limits change."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + SECONDS_BETWEEN_LOOKS
            self._look()
        if self._free_cores is not None and now >= self._next_measurement:
            self._next_measurement = now + SECONDS_BETWEEN_MEASUREMENTS
            if (free := self._free_cores()) is not None:
                self._resize(max(1, int(free + OTHERS_SHARE)))

    def _look(self) -> None:
        num_usable = self._count_usable()
        most = self._pool.max_threads
        if num_usable < self._num_usable_at_start:
            most = min(most, num_usable)
        if most != self._most:
            warnings.warn(
                f"this process may now keep {num_usable} threads busy; it started with"
                f" {self._num_usable_at_start}: the engine computes with {most} instead of"
                f" {self._most}",
                RuntimeWarning,
                stacklevel=3,
            )
            self._most = most
            self._resize(most)

    def _resize(self, num_threads: int) -> None:
        num_threads = min(num_threads, self._most)
        if num_threads != self._pool.num_threads:
            self._pool.resize(num_threads)
