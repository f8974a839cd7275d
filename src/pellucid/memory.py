"""Memory that this process may use, and how many KV blocks fit into it."""

import os
from pathlib import Path

from pellucid.config import EngineConfig

# Without a budget of the user's: room for this many contexts of full length ...
DEFAULT_CONTEXTS = 4
# ... unless it is more than this share of the memory that is available at start.
DEFAULT_MEMORY_SHARE = 0.5


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken now without swapping, within the cgroup's limit (v2 or v1).

    Args:
        root: where /proc and /sys are found; tests give a tree of their own.

    Returns:
        None where the system does not say.
    """
    limits = [
        limit for limit in (_meminfo_available(root), *_cgroup_headrooms(root)) if limit is not None
    ]
    if limits:
        return max(0, min(limits))
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def plan_num_blocks(config: EngineConfig, max_model_len: int, bytes_per_block: int) -> int:
    """How many KV blocks to allocate.

    Args:
        config: `num_kv_blocks` wins over `kv_cache_memory` (bytes), which wins over the default.
        max_model_len: tokens of the longest sequence.
        bytes_per_block: of all layers, K and V, scales included.

    Raises:
        ValueError: not even one sequence of `max_model_len` tokens would fit.
    """
    blocks_per_context = -(-max_model_len // config.block_size)
    if config.num_kv_blocks is not None:
        num_blocks, knob = config.num_kv_blocks, f"num_kv_blocks={config.num_kv_blocks}"
    elif config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // bytes_per_block
        knob = f"kv_cache_memory={config.kv_cache_memory}"
    else:
        num_blocks = blocks_per_context * min(DEFAULT_CONTEXTS, config.max_num_seqs)
        if (available := available_memory()) is not None:
            num_blocks = min(num_blocks, int(available * DEFAULT_MEMORY_SHARE) // bytes_per_block)
        knob = f"{DEFAULT_MEMORY_SHARE:.0%} of the available memory"
    if num_blocks < blocks_per_context:
        raise ValueError(
            f"{knob} gives {num_blocks} KV blocks of {bytes_per_block} bytes, but one sequence of"
            f" max_model_len={max_model_len} tokens needs {blocks_per_context}: lower max_model_len"
            f" or set kv_cache_memory to at least {blocks_per_context * bytes_per_block}"
        )
    return num_blocks


def _meminfo_available(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


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
    return int(limit) - int(usage) if limit.isdigit() and usage.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
