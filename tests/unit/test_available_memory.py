"""The memory that the process may take: the kernel's report, control groups and limits."""

import resource
from pathlib import Path

import pytest

from pellucid.facts.host_memory import available_memory

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


@pytest.mark.parametrize("prefix", ["", "total_"])
def test_copies_of_files_are_no_use(tmp_path: Path, prefix: str) -> None:
    """Or nothing would be left for the cache once a large model was read."""
    names = ("limit_in_bytes", "usage_in_bytes") if prefix else ("max", "current")
    mount = "sys/fs/cgroup/memory" if prefix else "sys/fs/cgroup"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "7:memory:/job\n" if prefix else "0::/job\n",
            f"{mount}/job/memory.{names[0]}": "1000\n",
            f"{mount}/job/memory.{names[1]}": "900\n",
            f"{mount}/job/memory.stat": (
                "cache 7\ninactive_file 300\n"
                f"active_file 200\n{prefix}inactive_file 300\n{prefix}active_file 200\n"
            ),
        },
    )
    assert available_memory(root) == 600


def test_what_the_kernel_does_not_commit_itself_to_counts(tmp_path: Path) -> None:
    meminfo = "MemAvailable: 90 kB\nCommitLimit: 100 kB\nCommitted_AS: 60 kB\nHugePages_Total: 0\n"
    root = write(tmp_path, {"proc/meminfo": meminfo, "proc/sys/vm/overcommit_memory": "2\n"})
    assert available_memory(root) == 40 * 1024
    write(tmp_path, {"proc/sys/vm/overcommit_memory": "0\n"})
    assert available_memory(root) == 90 * 1024


def test_ulimit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = resource.getpagesize()
    root = write(tmp_path, {"proc/self/statm": "30 20 10 0 0 0 0\n"})
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100 * page, resource.RLIM_INFINITY))
    assert available_memory(root) == 70 * page
