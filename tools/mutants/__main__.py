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
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from changes import Change, changes
from coverage import CoverageData

LISTED = json.loads(Path(__file__).with_name("equal.json").read_text())
EQUAL = {(it["file"], it["line"], it["change"]) for it in LISTED}
NOT_RUN_HERE = re.compile("csrc/.*(neon|amx)")
MEASURED = Path("../coverage")  # a run of all tests: .coverage, durations, commit
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
PY_COMPILE = [sys.executable, "-m", "py_compile"]  # also for the cache, which knows seconds only
NINJA = ["ninja", "-C", "build/checked"]
CTEST = ["ctest", "--test-dir", "build/checked", "--stop-on-failure"]
DURATION = r"^([\d.]+)s (\w+) +(.+?\.py)(.*)$"
NUM_QUICK = 25  # tests of the first process, in which nearly all mistakes are noticed
MAX_SECONDS = 180.0  # of tests for one mistake


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout


class CoveringTests:
    """Which tests run a line, by a run that may be some commits old: a line is known by its text. A file of tests
    that has changed since stands for its tests, and a new one is shown every mistake.
    """

    def __init__(self) -> None:
        self._data = CoverageData(str(MEASURED / ".coverage"))
        self._data.read()
        self._commit = (MEASURED / "commit").read_text().strip()
        changed = git("diff", "--name-only", self._commit, "--", "tests/**/test_*.py")
        self._changed = set(changed.splitlines())
        self._seconds, self._set_up = Counter[str](), Counter[str]()  # of tests; of their files
        durations = (MEASURED / "durations").read_text()
        for seconds, phase, file, test in re.findall(DURATION, durations, re.MULTILINE):
            self._seconds[file if file in self._changed else file + test] += float(seconds)
            self._set_up[file] += float(seconds) * (phase == "setup")
        self._by_text = functools.cache(self._contexts)

    def _contexts(self, path: str) -> dict[str, set[str]]:
        measured = next((it for it in self._data.measured_files() if it.endswith(path)), path)
        by_line, by_text = self._data.contexts_by_lineno(measured), defaultdict[str, set[str]](set)
        for line, text in enumerate(git("show", f"{self._commit}:{path}").splitlines(), 1):
            by_text[" ".join(text.split())].update(by_line.get(line, ()))
        return by_text

    def of_line(self, path: str, text: str) -> set[str]:
        """Those of the whole file where the line is new or runs on import; none where no test runs it."""
        if not path.endswith(".py"):
            return {it for it in self._seconds if it.startswith("tests/native")}
        contexts = self._by_text(path).get(text, {""})
        if contexts == {""}:
            contexts = set().union(*self._by_text(path).values())
        ran = {it.rpartition("|")[0] for it in contexts - {""}}
        now = {file if (file := it.partition("::")[0]) in self._changed else it for it in ran}
        folders = {Path(it).parent for it in self._set_up if ran}  # others were not measured
        new = {it for it in self._changed - self._set_up.keys() if Path(it).parent in folders}
        return {it for it in now | new if Path(it.partition("::")[0]).exists()}

    def commands(self, tests: set[str]) -> list[tuple[float, list[str]]]:
        """What runs in one process after another, the quickest tests first, and for how many seconds at most."""
        cost = {it: self._seconds[it] + self._set_up[it.partition("::")[0]] for it in tests}
        order = sorted(tests, key=lambda it: (cost[it], it))
        until = itertools.accumulate(self._seconds[it] for it in order)
        taken = [it for it, seconds in zip(order, until, strict=True) if seconds < MAX_SECONDS]
        stages = [it for it in (taken[:NUM_QUICK], taken[NUM_QUICK:]) if it]
        return [(3 * sum(map(cost.get, it)) + 60, [*PYTEST, *it]) for it in stages]


def what_fails(limit: float, command: list[str]) -> str | None:
    """The test that fails, or else the command."""
    # A loop without an end stops by its processor time, which other work does not lengthen.
    waits = limit * max(1, os.getloadavg()[0])
    limited = ["timeout", "--kill-after=9", str(waits), "prlimit", f"--cpu={limit:.0f}", *command]
    with Path("output").open("w+") as output:  # a pipe would wait for what tests leave behind
        status = subprocess.run(limited, stdout=output, stderr=output, check=False).returncode
        output.seek(0)
        test = re.search(r"(?m)^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output.read())
    return (test[1] if test else " ".join(command[:3])) if status else None


def who_notices(path: str, change: Change, tests: list[tuple[float, list[str]]]) -> str | None:
    first = [(60, [*PY_COMPILE, path])] if path.endswith(".py") else [(900, NINJA), (300, CTEST)]
    source = Path(path).read_text()
    Path(path).write_text(source[: change.start] + change.text + source[change.end :])
    try:
        return next(filter(None, (what_fails(*it) for it in [*first, *tests])), None)
    finally:
        Path(path).write_text(source)


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--since", help="a commit: only lines that have changed since")
    options = parser.parse_args()
    covering, tried, noticed = CoveringTests(), Counter[str](), Counter[str]()
    for path, change in draw(options):
        if not (tests := covering.of_line(path, change.before)):
            continue
        who = who_notices(path, change, covering.commands(tests))
        if who in map(" ".join, (PY_COMPILE, NINJA)):
            continue  # no mistake that a test could notice
        folder = path.removeprefix("src/pellucid/").partition("/")[0]
        tried[folder] += 1
        noticed[folder] += who is not None
        lines = f"{change.before}\n    -> {change.after}"
        print(
            f"{path}:{change.line}:",
            who or f"{lines}\n    noticed by none of {len(tests)} tests",
            flush=True,
        )
        if tried.total() == options.count:
            break
    for folder, count in sorted(tried.items()):
        print(f"{folder:12} {noticed[folder]:4} of {count:4} noticed")
    print(f"seed {options.seed}")


if __name__ == "__main__":
    main()
