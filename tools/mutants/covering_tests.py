"""Which tests run a line, from a run of all tests that may be some commits old."""

import ast
import difflib
import json
import subprocess
from collections import defaultdict
from pathlib import Path

import coverage


def _matched(old: list[str], new: list[str]) -> dict[int, int]:
    """New line numbers, from 1, to the old numbers of the same lines."""
    blocks = difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_matching_blocks()
    return {b + i + 1: a + i + 1 for a, b, size in blocks for i in range(size)}


class CoveringTests:
    """
    Reads a folder with `.coverage` and the seconds of each test, both of a commit.

    Tests of modules that have changed since (`collected`) are taken to run whatever one of their
    module ran.
    """

    def __init__(self, folder: Path, commit: str, modules: list[str], collected: list[str]) -> None:
        self._data = coverage.CoverageData(str(folder / ".coverage"))
        self._data.read()
        self._measured = {
            "src/pellucid/" + path.rpartition("/src/pellucid/")[2]: path
            for path in self._data.measured_files()
        }
        self._commit = commit
        self.seconds: dict[str, float] = json.loads((folder / "durations.json").read_text())
        known = {test for test in self.seconds if test.partition("::")[0] not in modules}
        self._today = known.union(collected)
        self._changed = defaultdict(set)
        for test in collected:
            self._changed[test.partition("::")[0]].add(test)

    def of_file(self, path: str, source: str) -> dict[int, set[str]]:
        """
        The tests of each covered line of `source`: those of its statement, or, where that runs on
        import or is new, of what it stands in.
        """
        contexts = {}
        if path in self._measured:
            contexts = self._data.contexts_by_lineno(self._measured[path])
        shown = subprocess.run(
            ["git", "show", f"{self._commit}:{path}"], capture_output=True, text=True, check=False
        )
        old_lines = shown.stdout.splitlines()
        matched = _matched(old_lines, source.splitlines())
        ran = {
            line: {context.partition("|")[0] for context in contexts[old]}
            for line, old in matched.items()
            if old in contexts
        }
        modules = {test.partition("::")[0] for tests in ran.values() for test in tests}
        changed = set().union(*(self._changed[module] for module in modules))
        scopes = sorted(
            (
                (node.end_lineno - node.lineno, node.lineno, node.end_lineno, _head(node))
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.stmt)
            ),
        )
        covered = {}
        for line in range(1, len(source.splitlines()) + 1):
            around = [scope for scope in scopes if scope[1] <= line <= scope[2]]
            if not around:
                continue
            _, begin, _, head = around[0]
            own = set().union(*(ran.get(at, ()) for at in range(begin, head + 1)))
            if not own and line in matched:
                continue
            for _, first, last, _ in [(0, begin, head, 0), *around, (0, 1, len(matched), 0)]:
                tests = set().union(*(ran.get(at, ()) for at in range(first, last + 1)))
                if tests := tests & self._today:
                    covered[line] = tests | changed
                    break
        return covered


def _head(statement: ast.stmt) -> int:
    """The last line before a statement's body."""
    body = getattr(statement, "body", None)
    return max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno
