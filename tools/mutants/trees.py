"""Copies of the working tree in which tests run, each in a process forked from one that has imported the libraries."""

import contextlib
import importlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from python_changes import Change

_BIN = Path(sys.executable).parent
_NINJA = [str(_BIN / "ninja"), "-C", "build/native"]
_CTEST = [str(_BIN / "ctest"), "--test-dir", "build/native", "--stop-on-failure"]
_CTEST_SECONDS = 60
_MEMORY = 8 << 30
_FAILED = re.compile(
    r"^(?:FAILED |ERROR |ERROR: not found: .*?/)(tests/.*?)(?: - .*)?$", re.MULTILINE
)
_CTEST_FAILED = re.compile(r"^\s*\d+ - (\w+) \(", re.MULTILINE)
_PYTEST = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]
# Processes that tests start import the copy, too, not the tree that is installed for editing.
_SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if "pellucid" not in type(f).__module__]
"""


class Mutant(NamedTuple):
    path: str
    change: Change
    tests: set[str]

    def source(self) -> bytes:
        old = Path(self.path).read_bytes()
        return old[: self.change.start] + self.change.text.encode() + old[self.change.end :]

    def lines(self) -> tuple[str, str]:
        """The changed line, or lines, before and after."""
        old, new = Path(self.path).read_bytes(), self.source()
        begin = old.rfind(b"\n", 0, self.change.start) + 1
        after = len(old) - old.find(b"\n", self.change.end)
        before, now = (" ".join(it[begin : len(it) - after].decode().split()) for it in (old, new))
        return before, now

    def folder(self) -> str:
        return re.sub(r"^(?:src/pellucid/)?([^/]*)/.*", r"\1", self.path)


def git(*words: str) -> list[str]:
    return subprocess.check_output(["git", *words], text=True).splitlines()


def files() -> list[str]:
    """The files of the working tree that git does not ignore."""
    return [it for it in git("ls-files", "-co", "--exclude-standard") if Path(it).is_file()]


def import_libraries() -> None:
    """Imports what the package and the tests import, but nothing of the package: forked processes have it."""
    clients = "hypothesis, openai, anthropic, ollama"
    program = f"import sys, {clients}, pellucid.cli, pellucid.server.run; print(*sys.modules)"
    for name in subprocess.check_output([sys.executable, "-c", program], text=True).split():
        if not name.startswith(("pellucid", "_editable")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    sys.meta_path[:] = [it for it in sys.meta_path if "pellucid" not in type(it).__module__]


class Tree:
    """A copy as of now. Files that are the same stay, and with them what has been compiled."""

    def __init__(self, path: Path, is_native: bool) -> None:
        self._path = path.resolve()
        self._is_native = is_native
        listed = files()
        for copied in self._path.glob("[cst]*/**/*.*"):
            if (
                copied.suffix in (".py", ".cpp", ".h")
                and str(copied.relative_to(self._path)) not in listed
            ):
                copied.unlink()
        for name in listed:
            copied, content = self._path / name, Path(name).read_bytes()
            if not copied.is_file() or copied.read_bytes() != content:
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_bytes(content)
        (self._path / "sitecustomize.py").write_text(_SITE)
        if is_native:
            self._build()
        installed = Path(sysconfig.get_path("purelib")) / "pellucid"
        (extension,) = (self._path / "build/native" if is_native else installed).glob("_native*.so")
        link = self._path / "src/pellucid" / extension.name
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

    def run(self, command: list[str], seconds: float) -> tuple[int | None, str]:
        """The exit status and the output of a command, or of pytest with arguments; None: it took too long."""
        parent = os.getppid()
        output = self._path / "output"
        child = os.fork()
        if child == 0:
            os.setsid()
            os.chdir(self._path)
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(written, 1)
            os.dup2(written, 2)
            paths = [str(self._path), str(self._path / "src"), str(self._path / "tests")]
            os.environ["PYTHONPATH"] = ":".join(paths[:2])
            if command[0] != "pytest":
                os.execv(command[0], command)
            sys.path[:0] = paths
            try:
                os._exit(int(pytest.main([*_PYTEST, *command[1:]])))
            except BaseException:
                os._exit(pytest.ExitCode.INTERNAL_ERROR)
        # Other work on the machine makes tests slower.
        end = time.monotonic() + (3 * seconds + 20) * max(1.0, os.getloadavg()[0] / os.cpu_count())
        ended, status = 0, 0
        while not ended and time.monotonic() < end and os.getppid() == parent:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
        if os.getppid() != parent:
            sys.exit("interrupted")
        exit_status = os.waitstatus_to_exitcode(status) if ended else None
        return exit_status, output.read_text(errors="replace")

    def failing(self, tests: list[str], seconds: float) -> set[str]:
        """Those of the tests that fail without a change."""
        # Without names, pytest would run all tests.
        return set(_FAILED.findall(self.run(["pytest", *tests], seconds)[1])) if tests else set()

    def noticed_by(self, mutant: Mutant, processes: list[tuple[float, list[str]]]) -> str | None:
        """The test that fails, or what else says that something is wrong; None: nothing does."""
        changed = self._path / mutant.path
        changed.write_bytes(mutant.source())
        for compiled in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
            compiled.unlink()
        try:
            runs = [(seconds, ["pytest", "-x", *tests]) for seconds, tests in processes]
            if self._is_native:
                if self.run(_NINJA, 600)[0]:
                    return "the compiler"
                runs.insert(0, (_CTEST_SECONDS, _CTEST))
            for seconds, command in runs:
                status, output = self.run(command, seconds)
                if status is None:
                    return "the time limit"
                if status:
                    failed = _FAILED.search(output) or re.search(
                        r"(test_\w+) \.*\**(?:Failed|.*SEGFAULT|.*abort)", output
                    )
                    return failed.group(1) if failed else f"exit status {status}"
            return None
        finally:
            shutil.copyfile(mutant.path, changed)
            for compiled in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
                compiled.unlink()
