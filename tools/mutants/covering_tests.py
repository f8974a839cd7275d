"""Which tests run a line, from a run of all tests that may be some commits old."""

import ast
import contextlib
import difflib
import functools
import json
import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import coverage

# Of one process after another: the seconds that their tests take, and the tests.
Processes = list[tuple[float, list[str]]]

# What a process, and each file of tests in it, costs before its first test.
_IMPORT_SECONDS = 0.3
# A mistake is noticed by a quick test of little else, or by none: few tests in the first process.
_PROCESS_SECONDS = (3.0, 15.0, 60.0)


def _git(*words: str) -> list[str]:
    found = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


def _module(test: str) -> str:
    return test.partition("::")[0]


def _head_end(statement: ast.stmt) -> int:
    """The last line before a statement's body."""
    body = getattr(statement, "body", None)
    return max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno


class CoveringTests:
    """
    Reads a folder with `.coverage`, the seconds of each test, and the commit of both.

    Tests of files that are new or changed since, and of `always`, are collected anew by `collect`, a
    function from files to what pytest prints. They are taken to run what any test of their file ran;
    those of `always`, all lines.
    """

    def __init__(
        self, folder: Path, always: list[str], collect: Callable[[list[str]], str]
    ) -> None:
        self._data = coverage.CoverageData(str(folder / ".coverage"))
        self._data.read()
        self._commit = (folder / "commit").read_text().strip()
        self._seconds: dict[str, float] = json.loads((folder / "durations.json").read_text())
        self._set_up: dict[str, float] = {}
        for (
            test,
            seconds,
        ) in self._seconds.items():  # the first test of a file pays for what all share
            self._set_up.setdefault(_module(test), seconds + _IMPORT_SECONDS)
        # How many files each test runs.
        query = "select context, count(*) from line_bits join context on context.id = context_id group by context"
        self._num_files: Counter[str] = Counter()
        with contextlib.closing(sqlite3.connect(folder / ".coverage")) as database:
            for context, count in database.execute(query):
                self._num_files[context.rpartition("|")[0]] += count
        changed = _git("diff", "--name-only", "--diff-filter=d", self._commit, "--", "tests")
        changed += _git("ls-files", "-o", "--exclude-standard", "tests")
        folders = {Path(module).parent for module in self._set_up}
        modules = {
            it for it in changed if Path(it).match("test_*.py") and Path(it).parent in folders
        }
        modules.update(always)
        collected = collect(sorted(modules)).splitlines() if modules else []
        self._collected = defaultdict(set)
        for test in collected:
            if _module(test) in modules:
                self._collected[_module(test)].add(test)
        self._always = {test for module in always for test in self._collected[module]}
        self.tests = {test for test in self._seconds if _module(test) not in modules}.union(
            *self._collected.values()
        )

    def of_folders(self, *folders: str) -> set[str]:
        """The tests in some folders."""
        return {test for test in self.tests if test.startswith(folders)} | self._always

    def of_file(self, path: str, source: str) -> dict[int, set[str]]:
        """
        The tests of each covered line of `source`: those of its statement, or, where that runs on
        import or is new, of what it stands in.
        """
        measured = next((it for it in self._data.measured_files() if it.endswith(f"/{path}")), None)
        contexts = self._data.contexts_by_lineno(measured) if measured else {}
        old_lines = _git("show", f"{self._commit}:{path}")
        matcher = difflib.SequenceMatcher(None, old_lines, source.splitlines(), autojunk=False)
        old_of = {
            b + i + 1: a + i + 1 for a, b, n in matcher.get_matching_blocks() for i in range(n)
        }
        ran = {
            line: {context.rpartition("|")[0] for context in contexts[old]}
            for line, old in old_of.items()
            if old in contexts
        }

        @functools.cache
        def of_lines(begin: int, end: int) -> set[str]:
            return set().union(*(ran.get(line, ()) for line in range(begin, end + 1)))

        num_lines = len(source.splitlines())
        changed = [
            self._collected[module] for module in {_module(test) for test in of_lines(1, num_lines)}
        ]
        statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
        statements.sort(key=lambda node: node.end_lineno - node.lineno)
        covered = {}
        for line in range(1, num_lines + 1):
            around = [node for node in statements if node.lineno <= line <= node.end_lineno]
            if not around:
                continue
            head = (around[0].lineno, _head_end(around[0]))
            if of_lines(*head) or line not in old_of:
                spans = [head, *((node.lineno, node.end_lineno) for node in around), (1, num_lines)]
                tests = next(
                    (found for span in spans if (found := of_lines(*span) & self.tests)), set()
                )
                if tests := tests.union(self._always, *changed):
                    covered[line] = tests
        return covered

    def processes(self, tests: set[str], limit: float) -> Processes:
        """What runs one after another: quick and narrow tests first, at most `limit` seconds in all."""
        seconds = {test: self._seconds.get(test, 0.0) for test in tests & self.tests}
        set_up = {
            _module(test): self._set_up.get(_module(test), _IMPORT_SECONDS) for test in seconds
        }

        def order(test: str) -> tuple[float, str]:
            return seconds[test] + set_up[_module(test)] + self._num_files[test] / 100, test

        processes: Processes = []
        ends = [0.0, *_PROCESS_SECONDS, limit]
        modules: dict[str, list[str]] = {}  # of the last process
        left = limit
        for test in sorted(seconds, key=order):
            cost = seconds[test] + set_up[_module(test)] * (_module(test) not in modules)
            if cost > left:
                break
            if not processes or processes[-1][0] + cost > ends[min(len(processes), len(ends) - 1)]:
                processes.append((0.0, []))
                modules = {}
            modules.setdefault(_module(test), []).append(test)
            processes[-1] = (
                processes[-1][0] + cost,
                [it for those in modules.values() for it in those],
            )
            left -= cost
        return processes
