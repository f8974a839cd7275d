"""CpuInfo: compared with the operating system's reports, and on machines described by files in a folder."""

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.backends.native import CpuInfo, cpu_info

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")

ARM_FEATURES = {  # ours: Linux's
    "bf16": "bf16",
    "dotprod": "asimddp",
    "fp16": "asimdhp",
    "i8mm": "i8mm",
    "neon": "asimd",
    "sve": "sve",
}
# fmt: off
X86_FEATURES = {
    "amx_bf16", "amx_int8", "amx_tile", "avx", "avx2", "avx512_bf16", "avx512_fp16", "avx512_vnni",
    "avx512bw", "avx512dq", "avx512f", "avx512vbmi", "avx512vl", "avx_vnni", "bmi2", "f16c", "fma",
    "gfni", "sha_ni", "sse4_1", "sse4_2",
}
# fmt: on


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


# Shapes of mountinfo: id parent major:minor root mount_point options tags - type source options
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY = "36 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def v2_tree(cgroup: str, limits: dict[str, str], mountinfo: str = V2_MOUNT) -> dict[str, str]:
    """A process in `cgroup`; `limits` are the cpu.max of cgroups by their path below the mount."""
    files = {"proc/self/cgroup": f"0::{cgroup}\n", "proc/self/mountinfo": mountinfo}
    return files | {f"sys/fs/cgroup{path}/cpu.max": text for path, text in limits.items()}


def v1_tree(cgroup: str, limits: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The same for v1; limits are (cpu.cfs_quota_us, cpu.cfs_period_us)."""
    files = {
        "proc/self/cgroup": f"4:memory:/elsewhere\n1:cpu,cpuacct:{cgroup}\n",
        "proc/self/mountinfo": V1_MEMORY + V1_MOUNT,
    }
    for path, (quota, period) in limits.items():
        folder = f"sys/fs/cgroup/cpu,cpuacct{path}"
        files |= {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}
    return files


def describe(root: Path) -> CpuInfo:
    return cpu_info(root=str(root))


# The machine that the tests run on


@on_linux
def test_features_are_those_of_proc_cpuinfo() -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE).group(1).split())
    if platform.machine() == "x86_64":
        expected = flags & X86_FEATURES
    else:
        expected = {ours for ours, linux in ARM_FEATURES.items() if linux in flags}
    assert cpu_info().features == expected


@on_linux
def test_allowed_cpus_are_the_affinity_mask() -> None:
    info = cpu_info()
    assert info.num_allowed_cpus == len(os.sched_getaffinity(0))
    assert info.num_logical_cpus == os.sysconf("SC_NPROCESSORS_ONLN")


def test_counts_are_ordered() -> None:
    info = cpu_info()
    assert 1 <= info.num_threads <= info.num_fast_cores <= info.num_allowed_cores
    assert info.num_allowed_cores <= info.num_allowed_cpus
    assert info.num_allowed_cpus <= info.num_logical_cpus
    assert info.num_allowed_cores <= info.num_physical_cores <= info.num_logical_cpus


def test_caches_grow_by_level() -> None:
    caches = cpu_info().caches
    levels = [cache.level for cache in caches]
    assert levels == sorted(set(levels))
    sizes = [cache.size_bytes for cache in caches]
    assert sizes == sorted(sizes)
    assert all(cache.num_sharing_cpus >= 1 for cache in caches)


def test_report_is_immutable() -> None:
    info = cpu_info()
    for name in ("features", "num_threads", "caches", "anything_else"):
        with pytest.raises(AttributeError):
            setattr(info, name, 3)
    with pytest.raises(TypeError):
        CpuInfo()


def test_repr_names_what_matters() -> None:
    info = cpu_info()
    assert repr(info).startswith(f"CpuInfo(num_threads={info.num_threads}, ")


@pytest.fixture
def one_allowed_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@on_linux
@pytest.mark.usefixtures("one_allowed_cpu")
def test_affinity_bounds_threads() -> None:
    info = cpu_info()
    assert info.num_allowed_cpus == info.num_allowed_cores == info.num_threads == 1
    assert info.thread_limit == ("affinity" if info.num_physical_cores > 1 else "cores")


# Topology and caches


@on_linux
def test_siblings_of_a_core_count_once(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    everyone = ",".join(map(str, allowed))
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {topology.format(cpu): everyone + "\n" for cpu in allowed}
    info = describe(write_tree(tmp_path, files | {"sys/devices/system/cpu/online": everyone}))
    assert info.num_logical_cpus == info.num_allowed_cpus == len(allowed)
    assert info.num_physical_cores == info.num_allowed_cores == info.num_threads == 1
    assert info.thread_limit == "cores"


@on_linux
def test_untold_topology_is_one_core_per_cpu(tmp_path: Path) -> None:
    info = describe(tmp_path)
    assert info.num_allowed_cores == info.num_allowed_cpus == len(os.sched_getaffinity(0))
    assert info.num_threads == info.num_allowed_cores


def cpu_files(name: str, numbers: list[int | str]) -> dict[str, str]:
    """A file of that name for each CPU."""
    return {f"sys/devices/system/cpu/cpu{cpu}/{name}": f"{x}\n" for cpu, x in enumerate(numbers)}


FREQUENCY = "cpufreq/cpuinfo_max_freq"
HYBRID_MACHINES = {  # files, the fast ones of CPUs 0 to 3
    "nothing is told": ({}, {0, 1, 2, 3}),
    "big and little": (cpu_files("cpu_capacity", [1024, 446, 446, 1024]), {0, 3}),
    "favoured cores": (cpu_files("cpu_capacity", [1024, 980, 1024, 980]), {0, 1, 2, 3}),
    "frequencies": (cpu_files(FREQUENCY, [5100000, 3900000, 3900000, 3900000]), {0}),
    "favoured frequencies": (
        cpu_files(FREQUENCY, [5300000, 4900000, 4900000, 5300000]),
        {0, 1, 2, 3},
    ),
    "capacities before frequencies": (
        cpu_files("cpu_capacity", [512, 1024, 1024, 1024]) | cpu_files(FREQUENCY, [4, 1, 1, 1]),
        {1, 2, 3},
    ),
    "a capacity that is not told": (cpu_files("cpu_capacity", [1024, "", 446, 446]), {0, 1, 2, 3}),
    "Intel's kinds of cores": ({"sys/devices/cpu_core/cpus": "1-2\n"}, {1, 2}),
    "Intel, slow cores only": ({"sys/devices/cpu_core/cpus": "8-15\n"}, {0, 1, 2, 3}),
}


@pytest.fixture
def four_allowed_cpus() -> Iterator[set[int]]:
    """CPUs 0 to 3, as far as the process may use them."""
    before = os.sched_getaffinity(0)
    allowed = before & {0, 1, 2, 3}
    if not allowed:
        pytest.skip("the process may use none of CPUs 0 to 3")
    os.sched_setaffinity(0, allowed)
    yield allowed
    os.sched_setaffinity(0, before)


@on_linux
@pytest.mark.parametrize(("files", "fast"), HYBRID_MACHINES.values(), ids=HYBRID_MACHINES)
def test_slow_cores_get_no_thread(
    tmp_path: Path, four_allowed_cpus: set[int], files: dict[str, str], fast: set[int]
) -> None:
    expected = (fast & four_allowed_cpus) or four_allowed_cpus
    info = describe(write_tree(tmp_path, files))
    assert info.num_threads == info.num_fast_cores == len(expected)
    assert info.num_allowed_cores == len(four_allowed_cpus)
    assert (info.thread_limit == "fast_cores") == (expected != four_allowed_cpus)


@on_linux
@pytest.mark.parametrize(
    ("text", "huge_pages"),
    [
        ("always [madvise] never\n", True),
        ("[always] madvise never\n", True),
        ("always madvise [never]\n", False),
        ("never\n", None),
        ("", None),
    ],
)
def test_huge_pages(tmp_path: Path, text: str, huge_pages: bool | None) -> None:
    files = {"sys/kernel/mm/transparent_hugepage/enabled": text}
    assert describe(write_tree(tmp_path, files)).huge_pages is huge_pages


@on_linux
def test_huge_pages_that_the_process_switched_off() -> None:
    script = """
import ctypes
from pellucid.backends.native import cpu_info
PR_SET_THP_DISABLE = 41
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
print(cpu_info().huge_pages)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "False\n"


@on_linux
def test_caches_from_sysfs(tmp_path: Path) -> None:
    rows = [
        ("1", "Data", "48K", "0-1"),
        ("1", "Instruction", "32K", "0-1"),
        ("2", "Unified", "2048K", "0-1"),
        ("3", "Unified", "105M", "0-3,8-11"),
        ("2", "Unified", "lots", "0"),  # malformed: left out
        ("3", "Unified", "1M", "3-0"),
    ]
    files = {}
    for index, values in enumerate(rows):
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            files[f"sys/devices/system/cpu/cpu0/cache/index{index}/{name}"] = value + "\n"
    caches = describe(write_tree(tmp_path, files)).caches
    assert [(c.level, c.size_bytes, c.num_sharing_cpus) for c in caches] == [
        (1, 48 << 10, 2),
        (2, 2 << 20, 2),
        (3, 105 << 20, 8),
    ]


@on_linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is x86's")
def test_caches_from_cpuid_agree_with_sysfs(tmp_path: Path) -> None:
    from_cpuid = [(cache.level, cache.size_bytes) for cache in describe(tmp_path).caches]
    from_sysfs = [(cache.level, cache.size_bytes) for cache in cpu_info().caches]
    assert from_cpuid == from_sysfs


# Control groups

V2_QUOTAS = {
    "half": ("50000 100000\n", 0.5),
    "exactly two": ("200000 100000\n", 2.0),
    "odd period": ("25000 10000", 2.5),
    "max": ("max 100000\n", None),
    "zero": ("0 100000\n", None),
    "negative": ("-5 100000\n", None),
    "no period": ("50000\n", None),
    "period of zero": ("50000 0\n", None),
    "too many fields": ("50000 100000 7\n", None),
    "not a number": ("fast 100000\n", None),
    "a fraction": ("5.5 100000\n", None),
    "too large for 64 bits": ("99999999999999999999 100000\n", None),
    "empty": ("", None),
}
V2_LIMITS = {  # of a process in /a/b/c
    "ancestor": ({"/a/b/c": "400000 100000", "/a": "150000 100000"}, 1.5),
    "own": ({"/a/b/c": "50000 100000", "/a": "150000 100000"}, 0.5),
    "max below a limit": ({"/a/b": "max 100000", "/a": "300000 100000"}, 3.0),
    "a child's limit is not ours": ({"/a/b/c/d": "10000 100000"}, None),
    "nor a sibling's": ({"/other": "10000 100000"}, None),
    "the mounted root's is": ({"": "70000 100000"}, 0.7),
    "no controller": ({}, None),
}
V1_LIMITS = {  # of a process in /a
    "v1": ({"/a": ("150000", "100000")}, 1.5),
    "v1 unlimited": ({"/a": ("-1", "100000")}, None),
    "v1 ancestor": ({"/a": ("-1", "100000"), "": ("5000", "10000")}, 0.5),
    "v1 malformed quota": ({"/a": ("x", "100000"), "": ("5000", "10000")}, 0.5),
    "v1 no period": ({"/a": ("150000", "")}, None),
}


def both_hierarchies() -> dict[str, str]:
    files = v1_tree("/a", {"/a": ("300000", "100000")})
    files["proc/self/cgroup"] += "0::/a\n"
    files["proc/self/mountinfo"] += V2_MOUNT.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    return files | {"sys/fs/cgroup/unified/a/cpu.max": "200000 100000"}


def part_of_a_hierarchy() -> dict[str, str]:
    """Without a cgroup namespace the process in a container sees the host's path, but only its own subtree."""
    mountinfo = V2_MOUNT.replace(" / ", " /docker/c0ffee ", 1)
    files = v2_tree("/docker/c0ffee/worker", {"/worker": "max 100000"}, mountinfo)
    return files | {"sys/fs/cgroup/cpu.max": "250000 100000"}


def other_name_with_the_same_beginning() -> dict[str, str]:
    mountinfo = V2_MOUNT.replace(" / ", " /docker/c0 ", 1)
    return v2_tree("/docker/c0ffee", {"ffee": "100000 100000"}, mountinfo)


def mount_point_with_a_space() -> dict[str, str]:
    mountinfo = V2_MOUNT.replace("/sys/fs/cgroup ", r"/sys/fs/my\040groups ")
    return v2_tree("/", {}, mountinfo) | {"sys/fs/my groups/cpu.max": "50000 100000"}


QUOTAS: dict[str, tuple[dict[str, str], float | None]] = {
    **{name: (v2_tree("/app", {"/app": text}), quota) for name, (text, quota) in V2_QUOTAS.items()},
    **{name: (v2_tree("/a/b/c", limits), quota) for name, (limits, quota) in V2_LIMITS.items()},
    **{name: (v1_tree("/a", limits), quota) for name, (limits, quota) in V1_LIMITS.items()},
    "the tighter of two hierarchies": (both_hierarchies(), 2.0),
    "a container's part": (part_of_a_hierarchy(), 2.5),
    "whole names are compared": (other_name_with_the_same_beginning(), None),
    "a mount point with a space": (mount_point_with_a_space(), 0.5),
}


@on_linux
@pytest.mark.parametrize(("files", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_quotas_of_control_groups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert describe(write_tree(tmp_path, files)).cpu_quota == quota


@on_linux
def test_quota_is_rounded_up_and_bounds_threads(tmp_path: Path) -> None:
    info = describe(write_tree(tmp_path, v2_tree("/", {"": "20000 100000"})))
    assert (info.cpu_quota, info.num_threads) == (0.2, 1)
    assert info.thread_limit == ("quota" if info.num_allowed_cores > 1 else "cores")


@on_linux
def test_generous_quota_bounds_nothing(tmp_path: Path) -> None:
    info = describe(write_tree(tmp_path, v2_tree("/", {"": "99900000 100000"})))
    assert info.cpu_quota == 999.0
    assert info.num_threads == info.num_allowed_cores
    assert info.thread_limit == "cores"


lines = st.text(alphabet=" :-/,\\0123456789abcpuxm\n", max_size=60)


@on_linux
@given(cgroup=lines, mountinfo=lines, cpu_max=lines, online=lines, siblings=lines)
def test_any_content_gives_a_sound_report(
    cgroup: str, mountinfo: str, cpu_max: str, online: str, siblings: str
) -> None:
    files = {
        "proc/self/cgroup": f"0::/\n{cgroup}",
        "proc/self/mountinfo": V2_MOUNT + mountinfo,
        "sys/fs/cgroup/cpu.max": cpu_max,
        "sys/devices/system/cpu/online": online,
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": siblings,
    }
    with tempfile.TemporaryDirectory() as folder:
        info = describe(write_tree(Path(folder), files))
    assert info.cpu_quota is None or info.cpu_quota > 0
    assert 1 <= info.num_threads <= max(info.num_allowed_cores, 1)
