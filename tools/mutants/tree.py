"""A copy of the tree in which tests run while its source has a mistake."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from changes import Change

_BIN = Path(sys.executable).parent
_PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
_NINJA = [str(_BIN / "ninja"), "-C", "build/native"]
_CTEST = [str(_BIN / "ctest"), "--test-dir", "build/native", "--stop-on-failure"]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
# Processes that tests start import the copy, too, not the tree that is installed for editing.
_SITE = """import sys
sys.meta_path[:] = [it for it in sys.meta_path if "pellucid" not in type(it).__module__]"""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout


class Tree:
    """The tracked files at a commit. What has been compiled stays from call to call."""

    def __init__(self, path: Path, commit: str, is_native: bool) -> None:
        self._path, self._is_native = path, is_native
        self._times = itertools.count(1)
        place = ["-C", path, "checkout"] if path.exists() else ["worktree", "add", path]
        subprocess.run(["git", *place, "-qf", "--detach", commit], check=True)
        (path / "sitecustomize.py").write_text(_SITE)
        if is_native:
            self._build()
        built = (
            path / "build/native" if is_native else Path(sysconfig.get_path("purelib"), "pellucid")
        )
        (extension,) = built.glob("_native*.so")
        link = path / "src/pellucid" / extension.name
        link.unlink(missing_ok=True)
        link.symlink_to(extension)

    def _build(self) -> None:
        """Builds the C++ tests and the extension with asserts, in minutes rather than for speed."""
        # -fsanitize=unreachable costs nothing; what is sanitized is compiled with -O0 and -O1.
        settings = ["PELLUCID_TESTS=ON", "PELLUCID_SANITIZE=unreachable", "SKBUILD=ON"]
        settings += ["SKBUILD_SABI_COMPONENT=", f"CMAKE_MAKE_PROGRAM={_NINJA[0]}"]
        settings += [f"Python_EXECUTABLE={sys.executable}"]
        command = [str(_BIN / "cmake"), "-S", ".", "-B", "build/native", "-G", "Ninja"]
        subprocess.run([*command, *(f"-D{it}" for it in settings)], cwd=self._path, check=True)
        subprocess.run(_NINJA, cwd=self._path, check=True)

    def _run(self, command: list[str], seconds: float) -> tuple[int | None, str]:
        """The exit status and the output of a command; None: it took three times as long as usual."""
        paths = f"{self._path}:{self._path / 'src'}"
        # Other work on the machine makes tests slower.
        limit = (3 * seconds + 20) * max(1.0, os.getloadavg()[0] / os.cpu_count())
        output = self._path / "build/output"
        output.parent.mkdir(exist_ok=True)
        with output.open("w") as written, subprocess.Popen(
            command, cwd=self._path, env=os.environ | {"PYTHONPATH": paths},
            stdout=written, stderr=written, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # what tests have left behind
                    os.killpg(process.pid, signal.SIGKILL)
        return status, output.read_text(errors="replace")

    def failing(self, tests: list[str]) -> set[str]:
        """Those of the tests that fail without a mistake."""
        return set(_FAILED.findall(self._run([*_PYTEST, *tests], 600)[1])) if tests else set()

    def _write(self, path: str, source: str) -> None:
        (self._path / path).write_text(source)
        if path.endswith(".py"):  # Python compares times by the second
            os.utime(self._path / path, (next(self._times),) * 2)

    def noticed_by(
        self, path: str, change: Change, stages: list[tuple[float, list[str]]]
    ) -> str | None:
        """The test that fails, or what else says that something is wrong; None: nothing does."""
        source = (self._path / path).read_text()
        self._write(path, change.applied_to(source))
        runs = [(seconds, [*_PYTEST, "-x", *tests]) for seconds, tests in stages]
        if self._is_native:
            runs[:0] = [(600, _NINJA), (60, _CTEST)]
        try:
            for seconds, command in runs:
                status, output = self._run(command, seconds)
                if status is None:
                    return "the time limit"
                if status:
                    failed = _FAILED.search(output)
                    return (
                        "the compiler"
                        if command is _NINJA
                        else failed[1]
                        if failed
                        else output[-200:]
                    )
            return None
        finally:
            self._write(path, source)
