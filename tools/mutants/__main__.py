"""Makes mistakes in the source, one at a time, and says which of them no test notices: docs/testing.md."""

import argparse
import functools
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from changes import Change, changes
from coverage import CoverageData
from native_trials import NativeTrials
from trials import QUIET, Trials

LISTED = json.loads(Path(__file__).with_name("equal.json").read_text())
EQUAL = {(it["file"], it["line"], it["change"]) for it in LISTED}
MEASURED = Path("../coverage")  # a run of all tests: .coverage, durations, commit
DURATION = r"^([\d.]+)s (\w+) +(.+?\.py)(.*)$"
NUM_FIRST = 2  # tests of each file, and of each function
MAX_NAMED = 20  # tests with a word of a line
QUICK = 0.1  # seconds: such tests come first, of files whose names have words of the source's path


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout


def file_of(test: str) -> str:
    return test.partition("::")[0]


def _words(path: str) -> set[str]:
    """Their beginnings: `quantize` is `quantizing`."""
    return {it[:5] for it in re.split(r"\W|_", path)}


@functools.cache
def _imports(file: str, path: str) -> bool:
    """Whether a file imports a source."""
    package, _, module = (
        path.removeprefix("src/").removesuffix(".py").replace("/", ".").rpartition(".")
    )
    wanted = rf"from {package}(?:\.{module} import| import [\w, ]*\b{module}\b| import \([^)]*\b{module}\b)"
    return re.search(wanted, Path(file).read_text()) is not None


@functools.cache
def _tables(path: str) -> list[str]:
    """Sources without functions that import a source, whose constants they collect."""
    sources = (it for it in git("ls-files", "src").splitlines() if it.endswith(".py"))
    return [it for it in sources if "def " not in Path(it).read_text() and _imports(it, path)]


def _named_like(line: str, tests: set[str]) -> set[str]:
    """Tests whose names or cases have a long word of a line that few others have: of `self.looks = ...`, say, which
    each server runs, those that look.
    """
    words = {test: _words(test.partition("::")[2]) for test in tests}
    num_with = Counter(itertools.chain(*words.values()))
    rare = {it for it in _words(line) if len(it) >= 5 and num_with[it] <= MAX_NAMED}
    return {test for test, own in words.items() if own & rare}


class CoveringTests:
    """Which tests run a line, by a run that may be some commits old: a line is known by its text. Of a file of tests
    that has changed since, all tests are taken.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._data = CoverageData(str(MEASURED / ".coverage"))
        self._data.read()
        self._commit = (MEASURED / "commit").read_text().strip()
        changed = git("diff", "--name-only", self._commit, "--", "tests/**/test_*.py")
        self._changed = set(changed.splitlines())
        self.seconds, self._set_up = Counter[str](), Counter[str]()  # of tests; of their files
        durations = (MEASURED / "durations").read_text()
        for seconds, phase, file, test in re.findall(DURATION, durations, re.MULTILINE):
            self.seconds[file + test] += float(seconds)
            self._set_up[file] = max(self._set_up[file], float(seconds) * (phase == "setup"))
        self._by_text = functools.cache(self._contexts)

    @property
    def folders(self) -> list[str]:
        return sorted({str(Path(*Path(it).parts[:2])) for it in self._set_up})

    def _contexts(self, path: str) -> dict[str, set[str]]:
        measured = next((it for it in self._data.measured_files() if it.endswith(path)), path)
        by_line, by_text = self._data.contexts_by_lineno(measured), defaultdict[str, set[str]](set)
        for line, text in enumerate(git("show", f"{self._commit}:{path}").splitlines(), 1):
            by_text[" ".join(text.split())].update(by_line.get(line, ()))
        return by_text

    def of_line(self, path: str, text: str, collected: set[str]) -> tuple[list[str], bool]:
        """In the order in which they run, and whether the line runs on import: then, and where it is new, they are
        those of the whole source.
        """
        contexts = self._by_text(path).get(text, {""})
        if contexts == {""}:
            contexts = {"", *itertools.chain(*self._by_text(path).values())}
        tests = {it.rpartition("|")[0] for it in contexts - {""}}
        files, importers = set(map(file_of, tests)), set[str]()
        if "" in contexts:  # whoever imports a constant may compare it, and run no line
            of_constants = (path, *_tables(path))
            importers = {
                it for it in map(file_of, collected) if any(_imports(it, by) for by in of_constants)
            }
        changed = {it for it in collected if file_of(it) in files & self._changed}
        comparing = {it for it in collected if file_of(it) in importers} - tests
        tests = (tests | changed | comparing) & collected
        named = comparing | _named_like(text, tests)
        return self.in_order(path, tests, first=named), "" in contexts

    def in_order(
        self, path: str, tests: set[str], is_known: bool = True, first: Collection[str] = ()
    ) -> list[str]:
        """As many as their time allows: first the quick ones, one of each function and all of files that import the
        source or whose names have words of its path; then one of each other function of these files, and two of each
        file; then one of each function, then the others and those that take a tenth of the time. What is drawn for the
        same function rarely notices more. Where it is not known whether they run the line: first all of these files,
        and some of each function.
        """
        cost = {it: self.seconds[it] + self._set_up[file_of(it)] for it in tests}
        words = _words(path.removeprefix("src/pellucid/"))
        seen, place, turn = Counter[str](), dict[str, tuple[int, float, str]](), dict[str, int]()
        for test in sorted(tests, key=lambda it: (cost[it], it)):
            file, function = file_of(test), test.partition("[")[0]
            shared = len(words & _words(Path(file).stem)) + 2 * _imports(file, path)
            place.setdefault(file, (-shared, cost[test], file))
            is_few, is_new = seen[function] < NUM_FIRST, not seen[function]
            is_quick = self.seconds[test] < QUICK
            is_first = seen[file] < NUM_FIRST and is_new
            is_of_known = is_quick and (is_new or shared > 0)
            is_early = test in first or (is_of_known if is_known else shared or is_few)
            is_next = is_first or (is_new and shared > 0)
            is_long = self.seconds[test] > self._max_seconds / 10
            turn[test] = 3 if is_long else 0 if is_early else 1 if is_next else 2 if is_new else 3
            seen[file] += is_first
            seen[function] += 1
        order = sorted(
            tests, key=lambda it: (turn[it], not _imports(file_of(it), path), cost[it], it)
        )
        until = itertools.accumulate(self.seconds[it] + 0.01 for it in order)
        taken = [it for it, spent in zip(order, until, strict=True) if spent < self._max_seconds]
        # Those of a file share what they set up.
        return sorted(taken, key=lambda it: (turn[it], place[file_of(it)], cost[it]))


def draw(options: argparse.Namespace) -> Iterator[tuple[str, Change, str]]:
    """One change of each line, in random order, and the source with it; none is listed as equal."""
    by_line: defaultdict[tuple[str, int], list[Change]] = defaultdict(list)
    for path in git("ls-files", *options.paths).splitlines():
        if path.endswith((".py", ".cpp", ".h")):
            since = git("show", f"{options.since}:{path}") if options.since else ""
            old = {" ".join(it.split()) for it in since.splitlines()}
            for change in changes(path, Path(path).read_text()):
                if change.before not in old:
                    by_line[path, change.line].append(change)
    generator = random.Random(options.seed)
    for path, line in generator.sample(sorted(by_line), len(by_line)):
        change, source = generator.choice(by_line[path, line]), Path(path).read_text()
        if (path, change.before, change.after) not in EQUAL:
            yield path, change, source[: change.start] + change.text + source[change.end :]


def compiles(path: str, source: str) -> bool:
    try:
        return bool(compile(source, path, "exec"))
    except SyntaxError:
        return False


def try_changes(
    options: argparse.Namespace, covering: CoveringTests, say: Callable[..., None], trials: Trials
) -> None:
    tried, noticed, not_built = Counter[str](), Counter[str](), set[str]()
    is_cpp = any(it.startswith("csrc") for it in options.paths)
    native = NativeTrials(options.seconds) if is_cpp else None
    for path, change, changed in draw(options):
        if path.endswith(".py"):
            tests, on_import = covering.of_line(path, change.before, trials.tests.keys())
            if not tests or not compiles(path, changed):
                continue
            who = trials.who_notices(tests, path, change.line, changed, on_import)
            num_tests = len(tests)
        else:
            assert native
            if not native.is_built(path):
                not_built.add(path)
                continue
            native_tests = {it for it in trials.tests if "tests/native" in it}
            tests = covering.in_order(path, native_tests, is_known=False)
            who, num_tests = native.who_notices(path, changed, tests)
            if not num_tests:
                continue
        folder = path.removeprefix("src/pellucid/").partition("/")[0]
        tried[folder] += 1
        noticed[folder] += who is not None
        lines = f"{change.before}\n    -> {change.after}"
        say(f"{path}:{change.line}:", who or f"{lines}\n    noticed by none of {num_tests} tests")
        if tried.total() == options.count:
            break
    for folder, count in sorted(tried.items()):
        say(f"{folder:12} {noticed[folder]:4} of {count:4} noticed")
    if not_built:
        say(f"not built here: {', '.join(sorted(not_built))}")
    say(f"seed {options.seed}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--seconds", type=float, default=20, help="of tests for one mistake")
    parser.add_argument("--since", help="a commit: only lines that have changed since")
    options = parser.parse_args()
    covering = CoveringTests(options.seconds)
    say = functools.partial(print, file=os.fdopen(os.dup(1), "w"), flush=True)
    os.dup2(os.open("output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)  # what tests write
    trials = Trials(functools.partial(try_changes, options, covering, say), covering.seconds)
    folders = (
        covering.folders if any(it.startswith("src") for it in options.paths) else ["tests/native"]
    )
    with tempfile.TemporaryDirectory() as folder:
        pytest.main([*QUIET, f"--basetemp={folder}/tests", *folders], plugins=[trials])
    if not trials.tests:
        sys.exit(f"pytest could not collect the tests: {Path('output').resolve()}")


if __name__ == "__main__":
    main()
