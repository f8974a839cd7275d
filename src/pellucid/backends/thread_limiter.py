"""Lowers the number of compute threads while the process may use fewer cores."""

import time
import warnings
from collections.abc import Callable

from pellucid.backends.native import ThreadPool, cpu_info

# Reading the affinity mask and the cgroups takes some 100 microseconds.
SECONDS_BETWEEN_LOOKS = 5.0


def count_usable_threads() -> int:
    """How many threads this process may keep busy now."""
    return cpu_info().num_threads


class ThreadLimiter:
    """Resizes a pool when an affinity mask or a container's CPU quota changes while the process runs.

    Threads that share a core wait for each other at every barrier. A pool that was made with more
    threads than the process could use stays as it is until the limit falls.

    Args:
        pool: at its full size.
        count_usable: how many threads the process may keep busy.
        clock: seconds.
    """

    def __init__(
        self,
        pool: ThreadPool,
        count_usable: Callable[[], int] = count_usable_threads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._count_usable = count_usable
        self._clock = clock
        self._num_usable_at_start = count_usable()
        self._next_look = clock() + SECONDS_BETWEEN_LOOKS

    def update(self) -> None:
        """Reads the limits every few seconds. A RuntimeWarning says when the number of threads changes."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + SECONDS_BETWEEN_LOOKS
        num_usable = self._count_usable()
        num_threads = self._pool.max_threads
        if num_usable < self._num_usable_at_start:
            num_threads = min(num_threads, num_usable)
        if num_threads != self._pool.num_threads:
            warnings.warn(
                f"this process may now keep {num_usable} threads busy; it started with"
                f" {self._num_usable_at_start}: the engine computes with {num_threads} instead of"
                f" {self._pool.num_threads}",
                RuntimeWarning,
                stacklevel=2,
            )
            self._pool.resize(num_threads)
