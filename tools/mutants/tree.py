"""A copy of the tree in which tests run while its source has a mistake."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path

from changes import Change

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
_FAILED = re.compile(r"(?m)^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$")
_BIN = Path(sys.executable).parent
_NINJA = [str(_BIN / "ninja"), "-C", "build/native"]
_CTEST = [str(_BIN / "ctest"), "--test-dir", "build/native", "--stop-on-failure"]
# Asserts, and a build in minutes: what is sanitized has -O0 and -O1, and this sanitizer costs nothing.
_CMAKE = [
    *(str(_BIN / "cmake"), "-S", ".", "-B", "build/native", "-G", "Ninja", "-DSKBUILD=ON"),
    *("-DPELLUCID_TESTS=ON", "-DPELLUCID_SANITIZE=unreachable", "-DSKBUILD_SABI_COMPONENT="),
    *(f"-DCMAKE_MAKE_PROGRAM={_NINJA[0]}", f"-DPython_EXECUTABLE={sys.executable}"),
]
# Processes that tests start import the copy, too, not the tree that is installed for editing.
_SITE = """import sys
sys.meta_path[:] = [it for it in sys.meta_path if "pellucid" not in type(it).__module__]"""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout


def enter(path: Path, is_native: bool) -> None:
    """Makes the working directory a copy of the tracked files as they are. What was compiled there before stays."""
    commit = git("stash", "create").strip() or "HEAD"
    place = ["-C", path, "checkout"] if path.exists() else ["worktree", "add", path]
    subprocess.run(["git", *place, "-qf", "--detach", commit], check=True)
    os.chdir(path)
    Path("sitecustomize.py").write_text(_SITE)
    if is_native:
        subprocess.run(_CMAKE, check=True)
        subprocess.run(_NINJA, check=True)
    built = Path("build/native" if is_native else f"{sysconfig.get_path('purelib')}/pellucid")
    (extension,) = built.resolve().glob("_native*.so")
    link = Path("src/pellucid", extension.name)
    link.unlink(missing_ok=True)
    link.symlink_to(extension)


def noticed_by(change: Change, stages: list[tuple[float, list[str]]]) -> str | None:
    """The test that fails with a change, or what else says that something is wrong; None: nothing does."""
    commands = [(seconds, [*PYTEST, "-x", *tests]) for seconds, tests in stages]
    if change.path.endswith((".cpp", ".h")):
        commands[:0] = [(600, _NINJA), (60, _CTEST)]
    source = Path(change.path).read_bytes()
    _write(change.path, change.applied_to(source))
    try:
        for seconds, command in commands:
            status, output = _run(command, seconds)
            if status is None:
                return "the time limit"
            if status:
                failed = _FAILED.search(output)
                return failed[1] if failed else "the compiler" if command is _NINJA else output
        return None
    finally:
        _write(change.path, source)


def failing(tests: list[str]) -> set[str]:
    """Those of the tests that fail without a change."""
    return set(_FAILED.findall(_run([*PYTEST, *tests], 600)[1])) if tests else set()


def _write(path: str, source: bytes) -> None:
    Path(path).write_bytes(source)
    Path(cache_from_source(path)).unlink(missing_ok=True)  # Python compares times by the second


def _run(command: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit status and the output of a command; no status: it took several times as long as usual."""
    environment = os.environ | {"PYTHONPATH": f"{Path.cwd()}:{Path.cwd() / 'src'}"}
    limit = (3 * seconds + 60) * max(1.0, os.getloadavg()[0] / os.cpu_count())
    with subprocess.Popen(
        command, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):  # what tests have left behind
                os.killpg(process.pid, signal.SIGKILL)
