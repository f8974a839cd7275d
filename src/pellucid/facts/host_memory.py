"""The memory that this process may still take; gives free memory back to the system."""

import os
import resource
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken now without swapping.

    The least of what the kernel calls available, what it still commits itself to where it does not
    overcommit, what the limits of the process's cgroups (v2 or v1) leave, and `ulimit -v`.

    Args:
        root: parent of /proc and /sys; tests pass another tree.

    Returns:
        None if the system does not report it.
    """
    meminfo = _meminfo(root)
    limits = [
        meminfo.get("MemAvailable"),
        _commit_headroom(root, meminfo),
        *_cgroup_headrooms(root),
        _address_space_headroom(root),
    ]
    if known := [limit for limit in limits if limit is not None]:
        return max(0, min(known))
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def give_back_free_memory() -> None:
    """Returns free memory that the C library keeps for later to the system (glibc only)."""
    # Imported here: counting memory needs none of it.
    import ctypes

    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name."""
    fields = (line.split() for line in _read(root / "proc/meminfo").splitlines())
    return {name.rstrip(":"): int(size) * 1024 for name, size, *_ in fields}


def _commit_headroom(root: Path, meminfo: dict[str, int]) -> int | None:
    """With vm.overcommit_memory = 2 even untouched memory counts."""
    if _read(root / "proc/sys/vm/overcommit_memory").strip() != "2":
        return None
    return meminfo["CommitLimit"] - meminfo["Committed_AS"]


def _address_space_headroom(root: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read(root / "proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return limit - int(pages[0]) * resource.getpagesize()


def _cgroup_headrooms(root: Path) -> list[int | None]:
    """Limit minus use at the process's own cgroup and every one above it."""
    headrooms: list[int | None] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = mount / path.lstrip("/")
        for directory in (own, *own.parents):
            if not directory.is_relative_to(mount):
                break
            headrooms.append(_headroom(directory, *names))
    return headrooms


def _headroom(directory: Path, limit_name: str, usage_name: str) -> int | None:
    limit, usage = _read(directory / limit_name).strip(), _read(directory / usage_name).strip()
    if not (limit.isdigit() and usage.isdigit()):
        return None
    return int(limit) - int(usage) + _file_cache(directory)


def _file_cache(directory: Path) -> int:
    """What counts as used but is given up when memory is wanted: copies of files, of a model's for
    example, that has just been read. v1 has the sums over all cgroups below as "total_"."""
    stat = dict(line.split() for line in _read(directory / "memory.stat").splitlines())
    return sum(
        int(stat.get(f"total_{name}", stat.get(name, 0)))
        for name in ("inactive_file", "active_file")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
