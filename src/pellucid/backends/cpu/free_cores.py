"""Free cores: how many of the cores that this process may use other programs leave to it."""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

STAT_FILE = Path("/proc/stat")
# Columns of a CPU's line (proc_stat(5)): without idle and iowait. Niced programs are left out: they give way.
_BUSY_COLUMNS = (1, 3, 6, 7, 8)  # user, system, irq, softirq, steal
_NICE_COLUMN = 2
# Over longer times the mean says little about now: nobody asked, because there were no steps.
LONGEST_SECONDS = 5.0


@dataclass(eq=False)
class FreeCores:
    """Measures free cores between two calls, by the time that all programs and that this one have used.

    Args:
        busy_seconds: the time that all programs have used on the CPUs that this process may use; None: unknown.
        own_seconds: the time that this process has used.
        clock: seconds.
        num_cpus: that this process may use.
    """

    _busy_seconds: Callable[[], float | None]
    _own_seconds: Callable[[], float]
    _clock: Callable[[], float]
    _num_cpus: int

    def __post_init__(self) -> None:
        self._last: tuple[float, float, float] | None = None  # clock, busy, own
        self._has_measured = False

    @classmethod
    def of_this_process(cls) -> "FreeCores":
        """Of Linux; elsewhere the free cores are unknown."""
        cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset[int]()
        measured = cls(lambda: _busy_seconds(cpus), time.process_time, time.monotonic, len(cpus))
        measured()  # from now on
        return measured

    def __call__(self) -> float | None:
        """The mean number of free cores since the last call; None: unknown, or the last call was long ago. The second
        call may come long after the first one: the model was loaded between them."""
        busy = self._busy_seconds()
        if busy is None:
            return None
        now, own = self._clock(), self._own_seconds()
        last, self._last = self._last, (now, busy, own)
        if last is None or now <= last[0]:
            return None
        seconds = now - last[0]
        if seconds > LONGEST_SECONDS and self._has_measured:
            return None
        self._has_measured = True
        others = max(0.0, busy - last[1] - (own - last[2]))
        return self._num_cpus - others / seconds


def _busy_seconds(cpus: Collection[int]) -> float | None:
    try:
        lines = STAT_FILE.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    columns: Sequence[int] = _BUSY_COLUMNS
    if os.nice(0) > 0:
        columns = (*columns, _NICE_COLUMN)
    names = {f"cpu{cpu}" for cpu in cpus}
    ticks = 0
    for line in lines:
        if line.partition(" ")[0] in names:
            fields = line.split()
            ticks += sum(int(fields[column]) for column in columns)
    return ticks / os.sysconf("SC_CLK_TCK")
