"""Which tests run a line, from a run of all tests that may be some commits old."""

import difflib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import coverage
from tree import git

_NUM_QUICK = 25  # tests in the first process: a mistake is noticed by a quick one, or by none
_MAX_SECONDS = 180.0  # of tests for one mistake


class CoveringTests:
    """Reads a folder with `.coverage`, a context for each test, `*.xml` with their seconds, and the commit of both.

    Tests that are new since then are taken to run what the others of their file ran; those of the files `always`, all.
    """

    def __init__(self, folder: Path, always: list[str]) -> None:
        self._data = coverage.CoverageData(str(folder / ".coverage"))
        self._data.read()
        self._commit = (folder / "commit").read_text().strip()
        self._seconds: Counter[str] = Counter()
        self._set_up: Counter[str] = Counter()  # the first test of a file pays for what all share
        for path in folder.glob("*.xml"):
            for case in ET.parse(path).iter("testcase"):
                file, seconds = case.attrib["file"], float(case.attrib["time"])
                inner = case.attrib["classname"][len(file) - len(".py") :].replace(".", "::")
                self._seconds[f"{file}{inner}::{case.attrib['name']}"] = seconds
                self._set_up.setdefault(file, seconds)
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", *self._set_up]
        listed = subprocess.run(collect, capture_output=True, text=True, check=False).stdout
        self.tests = {line for line in listed.splitlines() if "::" in line}
        self._new = self.tests - self._seconds.keys()
        self._always = {it for it in self.tests for file in always if it.startswith(file)}

    def of_lines(self, path: str) -> dict[int, set[str]]:
        """The tests of each covered line of a file: where it runs on import or is new, those of the whole file."""
        lines = Path(path).read_text().splitlines()
        if not path.endswith(".py"):
            native = {it for it in self.tests if it.startswith(("tests/native", "tests/model"))}
            return dict.fromkeys(range(1, len(lines) + 1), native)
        measured = next((it for it in self._data.measured_files() if it.endswith(f"/{path}")), None)
        contexts = self._data.contexts_by_lineno(measured) if measured else {}
        ran = {
            line: {it.rpartition("|")[0] for it in found if it} for line, found in contexts.items()
        }
        of_file = set().union(*ran.values())
        files = {_file(it) for it in of_file}
        new = self._always | {it for it in self._new if _file(it) in files}
        covered = dict.fromkeys(range(1, len(lines) + 1), of_file)
        old_lines = git("show", f"{self._commit}:{path}").splitlines()
        matcher = difflib.SequenceMatcher(None, old_lines, lines, autojunk=False)
        for a, b, count in matcher.get_matching_blocks():
            for i in range(1, count + 1):
                covered[b + i] = (ran[a + i] or of_file) if a + i in ran else set()
        return {line: it & self.tests | new for line, it in covered.items() if it & self.tests}

    def stages(self, tests: set[str]) -> list[tuple[float, list[str]]]:
        """What runs in one process after another, with its seconds: quick tests first."""
        order = sorted(tests, key=lambda it: (self._seconds[it] + self._set_up[_file(it)], it))
        stages = [order[:_NUM_QUICK], order[_NUM_QUICK:]]
        left, kept = _MAX_SECONDS, []
        for stage in stages:
            taken = []
            for test in stage:
                left -= self._seconds[test]
                if left > 0:
                    taken.append(test)
            set_up = sum(self._set_up[file] for file in {_file(it) for it in taken})
            kept.append((sum(self._seconds[it] for it in taken) + set_up, taken))
        return [stage for stage in kept if stage[1]]


def _file(test: str) -> str:
    return test.partition("::")[0]
