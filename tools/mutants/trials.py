"""Runs tests on a mistake: a process that has collected all of them forks, and exchanges the function's code."""

import ast
import contextlib
import gc
import itertools
import os
import resource
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

QUIET = ["-qx", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
MAX_BYTES = 6 << 30  # of memory: a loop without an end may fill it sooner than its time is up
UNDER_WAY = Path("under_way")  # what the forked process does


def _bodies(code: CodeType) -> Iterator[CodeType]:
    yield code
    for it in code.co_consts:
        if isinstance(it, CodeType):
            yield from _bodies(it)


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno


def _is_in_function(line: int, source: str) -> bool:
    functions = (it for it in ast.walk(ast.parse(source)) if isinstance(it, FUNCTIONS))
    return any(it.body[0].lineno <= line <= (it.end_lineno or 0) for it in functions)


class Trials:
    """A plugin of pytest: when all tests are collected, `work` is called in place of running them.

    Attributes:
        tests: what was collected, by name.
    """

    def __init__(self, work: Callable[["Trials"], None], seconds: Counter[str]) -> None:
        self.tests = dict[str, pytest.Item]()
        self._work: Callable[[Trials], None] | None = work
        self._seconds = seconds
        self._times = itertools.count(1_000_000_000)  # of files: byte code is known by them
        # Without a mistake: tests, and whether all modules were imported anew.
        self._passed = set[tuple[str, bool]]()
        self._fail = set[tuple[str, bool]]()
        self._functions = defaultdict[tuple[str, str, int], list[FunctionType]](list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self._work is None:
            return None
        self._session, self.tests = session, {it.nodeid: it for it in session.items}
        gc.unfreeze()
        for it in gc.get_objects():
            if isinstance(it, FunctionType):
                self._functions[_key(it.__code__)].append(it)
        self._work(self)
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        UNDER_WAY.write_text(nodeid)
        self._limit(3 * self._seconds[nodeid] + 30)

    def _limit(self, seconds: float) -> None:
        # A loop without an end stops by its processor time, which other work does not lengthen.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, seconds * max(1, os.getloadavg()[0]))

    def who_notices(
        self, tests: list[str], path: str, line: int, changed: str, on_import: bool
    ) -> str | None:
        """The first test that fails with this source, and passes without."""
        source, left = Path(path).read_text(), tests
        on_import |= not _is_in_function(line, source)
        # A test whose module makes threads fails in a fork: it runs after the others, with all modules imported anew.
        for anew in [True] if on_import else [False, True]:
            while chosen := [it for it in left if (it, anew) not in self._fail]:
                try:
                    who = self._who_fails(chosen, path, changed, anew)
                finally:
                    self._write(path, source)
                if who is None:
                    break
                if who not in self.tests or (who, anew) in self._passed:
                    return who
                if not self._who_fails([who], path, source, anew):
                    self._passed.add((who, anew))
                    return who
                self._fail.add((who, anew))
            left = [it for it in left if (it, anew) in self._fail]
        return None

    def _write(self, path: str, source: str) -> None:
        Path(path).write_text(source)
        os.utime(path, (next(self._times),) * 2)

    def _who_fails(self, tests: list[str], path: str, changed: str, anew: bool) -> str | None:
        self._write(path, changed)
        UNDER_WAY.write_text("the import")
        gc.collect()
        gc.freeze()  # or tests would be blamed for what is left here
        if not (process := os.fork()):
            status = 1
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
                self._work = None
                self._limit(90)
                status = self._run_anew(tests) if anew else self._run(tests, path, changed)
            finally:
                os._exit(status)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what the tests have started
        return UNDER_WAY.read_text() if status else None

    def _run(self, tests: list[str], path: str, changed: str) -> int:
        for code in _bodies(compile(changed, Path(path).resolve(), "exec")):
            for function in self._functions[_key(code)] if code.co_name != "<lambda>" else ():
                function.__code__ = code
        self._session.items[:] = map(self.tests.get, tests)
        with contextlib.suppress(self._session.Failed):
            self._session.config.hook.pytest_runtestloop(session=self._session)
        return int(self._session.testsfailed > 0)

    def _run_anew(self, tests: list[str]) -> int:
        """With all modules of the tree imported again."""
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None) or ""
            if file.startswith(str(Path.cwd())) and not file.endswith(".so"):
                del sys.modules[name]
        return int(pytest.main([*QUIET, *tests], plugins=[self]))
