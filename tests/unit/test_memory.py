from pathlib import Path

import pytest

from pellucid.config import EngineConfig
from pellucid.memory import available_memory, plan_num_blocks

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_it_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"})
    assert available_memory(root) == 2048 * 1024


def test_the_tightest_cgroup_above_the_process_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": f"MemAvailable: {8 * GIB // 1024} kB\n",
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/memory.max": f"{3 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{1 * GIB}\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/pod/container/memory.current": "5\n",
        },
    )
    assert available_memory(root) == 2 * GIB


def test_cgroup_v1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "7:cpu,memory:/job\n3:pids:/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "400",
        },
    )
    assert available_memory(root) == 600


def test_plan_takes_the_users_number_then_bytes() -> None:
    assert plan_num_blocks(EngineConfig(num_kv_blocks=9, kv_cache_memory=1), 64, 100) == 9
    assert plan_num_blocks(EngineConfig(kv_cache_memory=1099), 64, 100) == 10


def test_a_pool_too_small_for_one_context_names_the_knob() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_memory=150 gives 1 .* at least 200"):
        plan_num_blocks(EngineConfig(kv_cache_memory=150), 64, 100)
    with pytest.raises(ValueError, match="num_kv_blocks=1"):
        plan_num_blocks(EngineConfig(num_kv_blocks=1), 64, 100)
