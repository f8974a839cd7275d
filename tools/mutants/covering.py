"""Which tests run a line, from a run of all tests that may be some commits old."""

import itertools
import subprocess
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import coverage
from tree import PYTEST, git

_NUM_QUICK = 25  # tests of the first process, in which nearly all mistakes are noticed
_MAX_SECONDS = 180.0  # of tests for one mistake


def _file(test: str) -> str:
    return test.partition("::")[0]


class CoveringTests:
    """Reads a folder: `.coverage` with a context for each test, `tests.xml` with seconds, and `commit` of both."""

    def __init__(self, folder: Path) -> None:
        self._data = coverage.CoverageData(str(folder / ".coverage"))
        self._data.read()
        self._commit = (folder / "commit").read_text().strip()
        self._seconds: dict[str, float] = {}
        self._set_up: dict[str, float] = {}  # the first test of a file pays for what all share
        for case in ET.parse(folder / "tests.xml").iter("testcase"):
            file, seconds = case.attrib["file"], float(case.attrib["time"])
            classes = case.attrib["classname"][len(file) - len(".py") :].replace(".", "::")
            self._seconds[f"{file}{classes}::{case.attrib['name']}"] = seconds
            self._set_up.setdefault(file, seconds)
        files = [file for file in self._set_up if Path(file).exists()]
        command = [*PYTEST, "--collect-only", *files]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        self.tests = {line for line in listed.splitlines() if "::" in line}

    def of_lines(self, path: str) -> dict[int, set[str]]:
        """The tests of each covered line: where it runs on import or is new, those of the whole file."""
        lines = dict(enumerate(Path(path).read_text().splitlines(), 1))
        if not path.endswith(".py"):
            native = {it for it in self.tests if it.startswith("tests/native")}
            return dict.fromkeys(lines, native)
        measured = next((it for it in self._data.measured_files() if it.endswith(f"/{path}")), path)
        contexts = self._data.contexts_by_lineno(measured)
        ran: defaultdict[str, set[str]] = defaultdict(set)  # by the text of a line
        for line, text in enumerate(git("show", f"{self._commit}:{path}").splitlines(), 1):
            ran[text] |= {it.rpartition("|")[0] for it in contexts.get(line, ())}
        of_file = set().union(*ran.values()) & self.tests
        files = {_file(it) for it in of_file}
        new = {it for it in self.tests - self._seconds.keys() if _file(it) in files}
        tests = {
            it: ran[text] & self.tests or of_file
            for it, text in lines.items()
            if ran.get(text, {""})
        }
        return {line: it | new for line, it in tests.items() if it}

    def stages(self, tests: set[str]) -> list[tuple[float, list[str]]]:
        """What runs in one process after another, with its seconds: quick tests first."""
        order = sorted(tests, key=lambda it: (self._cost([it]), it))
        seconds = itertools.accumulate(self._seconds.get(it, 0.0) for it in order)
        taken = [it for it, until in zip(order, seconds, strict=True) if until < _MAX_SECONDS]
        stages = taken[:_NUM_QUICK], taken[_NUM_QUICK:]
        return [(self._cost(stage), stage) for stage in stages if stage]

    def _cost(self, tests: list[str]) -> float:
        set_up = sum(self._set_up[file] for file in {_file(it) for it in tests})
        return sum(self._seconds.get(it, 0.0) for it in tests) + set_up
