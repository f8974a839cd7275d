"""Shares of the machine's cores, one for each of several processes. Neighbours stay together, sockets whole."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


def core_shares(cpus: Sequence[tuple[int, int, int]], num_shares: int) -> list[frozenset[int]]:
    """Divides CPUs into shares of almost equal size.

    Args:
        cpus: (socket, core, number) of each.

    Returns:
        Numbers of CPUs. With fewer cores than shares, several shares have the same core.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for socket, core, number in sorted(cpus):
        cores.setdefault((socket, core), []).append(number)
    by_core = [*cores.values()]
    if len(by_core) < num_shares:
        return [frozenset(by_core[share % len(by_core)]) for share in range(num_shares)]
    ends = [len(by_core) * share // num_shares for share in range(num_shares + 1)]
    return [
        frozenset(number for core in by_core[start:end] for number in core)
        for start, end in pairwise(ends)
    ]


def own_cpus(root: Path = Path("/sys/devices/system/cpu")) -> list[tuple[int, int, int]]:
    """(socket, core, number) of each CPU that this process may use; without a socket where the system does not say."""
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [
        (
            _read(root / f"cpu{number}/topology/physical_package_id", 0),
            _read(root / f"cpu{number}/topology/core_id", number),
            number,
        )
        for number in numbers or range(os.cpu_count() or 1)
    ]


def _read(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise
