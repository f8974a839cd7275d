"""Makes mistakes in the source, one at a time, and says which of them no test notices: docs/testing.md."""

import argparse
import functools
import itertools
import json
import os
import random
import re
import time
import resource
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from pathlib import Path

import pytest
from changes import Change, changes
from coverage import CoverageData
from trials import QUIET, Trials

LISTED = json.loads(Path(__file__).with_name("equal.json").read_text())
EQUAL = {(it["file"], it["line"], it["change"]) for it in LISTED}
NOT_RUN_HERE = re.compile("csrc/.*(neon|amx)|.*/backends/torch/")
MEASURED = Path("../coverage")  # a run of all tests: .coverage, durations, commit
NINJA = ["ninja", "-C", "build/checked"]
CTEST = ["ctest", "--test-dir", "build/checked", "--stop-on-failure"]
NATIVE = [sys.executable, "-m", "pytest", *QUIET, "tests/native"]
DURATION = r"^([\d.]+)s (\w+) +(.+?\.py)(.*)$"
NUM_FIRST = 2  # tests of each file, which are shown a mistake before the others
MAX_SECONDS = float(os.environ.get("MAX_SECONDS", 6.0))  # of tests for one mistake, as they were measured


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout


def file_of(test: str) -> str:
    return test.partition("::")[0]


class CoveringTests:
    """Which tests run a line, by a run that may be some commits old: a line is known by its text. Of a file of tests
    that has changed since, all are taken.
    """

    def __init__(self) -> None:
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

    def _contexts(self, path: str) -> dict[str, set[str]]:
        measured = next((it for it in self._data.measured_files() if it.endswith(path)), path)
        by_line, by_text = self._data.contexts_by_lineno(measured), defaultdict[str, set[str]](set)
        for line, text in enumerate(git("show", f"{self._commit}:{path}").splitlines(), 1):
            by_text[" ".join(text.split())].update(by_line.get(line, ()))
        return by_text

    def of_line(self, path: str, text: str, collected: Container[str]) -> tuple[list[str], bool]:
        """And whether it runs on import: then, and where it is new, tests of the whole source are taken."""
        contexts = self._by_text(path).get(text, {""})
        if contexts == {""}:
            contexts = {"", *itertools.chain(*self._by_text(path).values())}
        tests = {it.rpartition("|")[0] for it in contexts - {""}}
        changed = {file_of(it) for it in tests} & self._changed
        tests |= {it for it in collected if file_of(it) in changed}
        return self._in_order(path, tests & collected), "" in contexts

    def _in_order(self, path: str, tests: set[str]) -> list[str]:
        """As many as their time allows: first those of files whose names have words of the path, and some of each
        other file.
        """
        cost = {it: self.seconds[it] + self._set_up[file_of(it)] for it in tests}
        by_file = defaultdict[str, list[str]](list)
        for test in sorted(tests, key=lambda it: (cost[it], it)):
            by_file[file_of(test)].append(test)
        words = set(re.split(r"\W|_", path.removeprefix("src/pellucid/")))
        shared = {it: len(words.intersection(Path(it).stem.split("_"))) for it in by_file}
        early = {it for file in by_file for it in by_file[file][: None if shared[file] else NUM_FIRST]}
        order = sorted(tests, key=lambda it: (it not in early, cost[it], it))
        until = itertools.accumulate(self.seconds[it] + 0.01 for it in order)
        taken = [it for it, spent in zip(order, until, strict=True) if spent < MAX_SECONDS]
        # Those of a file share what they set up.
        place = {file: (-shared[file], cost[each[0]], file) for file, each in by_file.items()}
        return sorted(taken, key=lambda it: (it not in early, place[file_of(it)], cost[it]))


def who_notices_cpp(path: str, changed: str) -> str | None:
    """The command that fails."""
    source = Path(path).read_text()
    Path(path).write_text(changed)
    try:
        for seconds, command in ((900, NINJA), (300, CTEST), (300, NATIVE)):
            # A loop without an end stops by its processor time, which other work does not lengthen.
            limited = ["prlimit", f"--cpu={seconds}", *command]
            if subprocess.run(limited, stdout=1, stderr=1, check=False).returncode:
                return " ".join(command[:3])
    finally:
        Path(path).write_text(source)
    return None


def draw(options: argparse.Namespace) -> Iterator[tuple[str, Change]]:
    """One change of each line, in random order; none is listed as equal."""
    by_line: defaultdict[tuple[str, int], list[Change]] = defaultdict(list)
    for path in git("ls-files", *options.paths).splitlines():
        if path.endswith((".py", ".cpp", ".h")) and not NOT_RUN_HERE.match(path):
            since = git("show", f"{options.since}:{path}") if options.since else ""
            old = {" ".join(it.split()) for it in since.splitlines()}
            for change in changes(path, Path(path).read_text()):
                if change.before not in old:
                    by_line[path, change.line].append(change)
    generator = random.Random(options.seed)
    for path, line in generator.sample(sorted(by_line), len(by_line)):
        change = generator.choice(by_line[path, line])
        if (path, change.before, change.after) not in EQUAL:
            yield path, change


def compiles(path: str, source: str) -> bool:
    try:
        return bool(compile(source, path, "exec"))
    except (SyntaxError, SyntaxWarning):
        return False


def try_changes(options: argparse.Namespace, say, covering: CoveringTests, trials: Trials) -> None:
    tried, noticed = Counter[str](), Counter[str]()
    for path, change in draw(options):
        source = Path(path).read_text()
        changed = source[: change.start] + change.text + source[change.end :]
        if path.endswith(".py"):
            tests, on_import = covering.of_line(path, change.before, trials.tests.keys())
            if not tests or not compiles(path, changed):
                continue
            who = trials.who_notices(tests, path, changed, on_import)
        else:
            tests, who = NATIVE[-1:], who_notices_cpp(path, changed)
            if who == " ".join(NINJA):
                continue  # no mistake that a test could notice
        folder = path.removeprefix("src/pellucid/").partition("/")[0]
        tried[folder] += 1
        noticed[folder] += who is not None
        lines = f"{change.before}\n    -> {change.after}"
        say(f"{time.process_time()+sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]):.0f} {time.time()%100000:.0f}", end=" ")
        say(f"{path}:{change.line}:", who or f"{lines}\n    noticed by none of {len(tests)} tests")
        if tried.total() == options.count:
            break
    for folder, count in sorted(tried.items()):
        say(f"{folder:12} {noticed[folder]:4} of {count:4} noticed")
    say(f"seed {options.seed}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--since", help="a commit: only lines that have changed since")
    options = parser.parse_args()
    # Tests write into a file, also those that a change kills.
    say = functools.partial(print, file=open(os.dup(1), "w"), flush=True)
    os.dup2(os.open("output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
    covering = CoveringTests()
    folders = {str(Path(file_of(it)).parts[1]) for it in covering.seconds}
    trials = Trials(functools.partial(try_changes, options, say, covering), covering.seconds)
    with tempfile.TemporaryDirectory() as folder:
        status = pytest.main([*QUIET, f"--basetemp={folder}/tests", *(f"tests/{it}" for it in sorted(folders))], plugins=[trials])
    if not hasattr(trials, "tests"):
        sys.exit(f"pytest ends with {status}: see build/mutants/tree/output")


if __name__ == "__main__":
    main()
