"""Makes mistakes in the source, one at a time, and says which of them no test notices: docs/testing.md."""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from covering_tests import CoveringTests
from python_changes import Change, changes

from pellucid import _native

HERE = Path(__file__).parent
BUILD = Path("build/mutants")
EQUAL = HERE / "equal.json"
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
MEMORY_KB = 8 << 20
# A mistake is noticed by a quick test, or by none: few tests in the first process, all in the last.
PROCESS_SECONDS = (2, 15, 60)
# Python finds the copy, not the tree that is installed for editing.
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if "pellucid" not in type(f).__module__]
"""


class Mutant(NamedTuple):
    path: str
    change: Change
    tests: list[str]

    def source(self) -> bytes:
        old = Path(self.path).read_bytes()
        return old[: self.change.start] + self.change.text.encode() + old[self.change.end :]

    def texts(self) -> tuple[str, str]:
        """The changed line, before and after."""
        old = Path(self.path).read_bytes()
        first = old.rfind(b"\n", 0, self.change.start) + 1
        new = self.source()
        stop = new.find(b"\n", self.change.start + len(self.change.text))
        line_end = old.find(b"\n", self.change.end)
        shorten = [
            " ".join(text.decode().split()) for text in (old[first:line_end], new[first:stop])
        ]
        return shorten[0], shorten[1]


def _files() -> list[str]:
    listed = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], text=True
    )
    return [name for name in listed.split("\0") if name and Path(name).exists()]


def _copy_tree(tree: Path) -> Path:
    """A copy as of now. Files that are the same stay, and with them what Python has compiled."""
    files = {tree / name: Path(name) for name in _files()}
    for copied in [*tree.glob("src/**/*.py"), *tree.glob("tests/**/*.py")]:
        if copied not in files:
            copied.unlink()
    for copied, file in files.items():
        if not copied.exists() or copied.stat().st_mtime_ns != file.stat().st_mtime_ns:
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copied)
    (tree / "sitecustomize.py").write_text(SITE)
    extension = Path(_native.__file__)
    link = tree / "src/pellucid" / extension.name
    if not link.exists():
        link.symlink_to(extension)
    return tree


def _run(tree: Path, arguments: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit status and output of pytest in a copy of the tree; None: it took too long."""
    arguments_file = tree / "arguments"
    arguments_file.write_text("\n".join(arguments))
    environment = os.environ | {"PYTHONPATH": f"{tree.resolve()}:{(tree / 'src').resolve()}"}
    limit = f'ulimit -v {MEMORY_KB}; exec "$@"'
    with (tree / "output").open("w+") as output:
        process = subprocess.Popen(
            ["bash", "-c", limit, "-", *PYTEST, "@arguments"],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # Other work on the machine makes tests slower.
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        try:
            status = process.wait(busy * (3 * seconds + 20))
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return status, (tree / "output").read_text(errors="replace")


class Runner:
    """Runs tests against one mutant in one copy of the tree."""

    def __init__(self, covering: CoveringTests, limit: float) -> None:
        self._covering = covering
        self._limit = limit

    def _processes(self, tests: list[str]) -> list[tuple[float, list[str]]]:
        """Tests for one process after another, with their seconds, the quickest first."""
        seconds = self._covering.seconds
        ordered = sorted(tests, key=lambda test: (seconds.get(test, 0.0), test))
        groups, taken, total = [], [], 0.0
        ends = [*PROCESS_SECONDS]
        spent = 0.0
        for test in ordered:
            cost = seconds.get(test, 0.1) + 0.01
            if spent + cost > self._limit:
                break
            spent += cost
            if ends and total + cost > ends[0] and taken:
                groups.append((total, sorted(taken)))
                ends.pop(0)
                taken, total = [], 0.0
            taken.append(test)
            total += cost
        return [*groups, (total, sorted(taken))] if taken else groups

    def noticed_by(self, mutant: Mutant, tree: Path, stamp: int) -> str | None:
        """The test that fails, or what else says that something is wrong; None: nothing does."""
        changed = tree / mutant.path
        changed.write_bytes(mutant.source())
        # Python compiles a file again when its time has changed: by whole seconds.
        os.utime(changed, (stamp, stamp))
        try:
            for seconds, tests in self._processes(mutant.tests):
                status, output = _run(tree, ["-x", *tests], seconds)
                if status is None:
                    return "time limit"
                if status:
                    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
                    return found.group(1) if found else f"exit status {status}"
            return None
        finally:
            shutil.copy2(mutant.path, changed)


def _changed_tests(since: str) -> list[str]:
    words = ["git", "diff", "--name-only", "--diff-filter=d", since, "--", "tests"]
    names = subprocess.check_output(words, text=True).split()
    names += subprocess.check_output(
        ["git", "ls-files", "-o", "--exclude-standard", "tests"], text=True
    ).split()
    return [
        name
        for name in names
        if Path(name).match("test_*.py")
        and not name.startswith(("tests/oracle", "tests/integrations", "tests/page"))
    ]


def _changed_lines(since: str, path: str) -> set[int]:
    words = ["git", "diff", "-U0", since, "--", path]
    hunks = re.findall(
        r"^@@ .* \+(\d+)(?:,(\d+))? @@", subprocess.check_output(words, text=True), re.MULTILINE
    )
    return {int(first) + i for first, count in hunks for i in range(int(count or 1))}


def _draw(options: argparse.Namespace, covering: CoveringTests, named: list[str]) -> list[Mutant]:
    """One change of each of so many lines that tests run, none of them listed as equal."""
    equal = {
        (entry["file"], entry["line"], entry["change"]) for entry in json.loads(EQUAL.read_text())
    }
    by_line = {}
    folders = tuple(f"src/pellucid/{folder}" for folder in options.folders or [""])
    for path in _files():
        if not (path.startswith(folders) and path.endswith(".py")):
            continue
        lines = _changed_lines(options.since, path) if options.since else None
        if lines == set():
            continue
        source = Path(path).read_bytes()
        tests = covering.of_file(path, source.decode())
        for change in changes(source):
            if change.line in tests and (lines is None or change.line in lines):
                mutant = Mutant(path, change, [*named, *tests[change.line]])
                by_line.setdefault((path, change.line), []).append(mutant)
    generator = random.Random(options.seed)
    drawn = []
    for line in generator.sample(sorted(by_line), len(by_line)):
        mutant = generator.choice(by_line[line])
        if (mutant.path, *mutant.texts()) not in equal:
            drawn.append(mutant)
        if len(drawn) == options.count:
            break
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("folders", nargs="*", help="of src/pellucid, or files there; without: all")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--since", help="a commit: only lines that have changed since")
    parser.add_argument(
        "--tests", nargs="*", default=[], help="files of tests that run for every change"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--data", type=Path, default=BUILD / "coverage", help="which tests run which line"
    )
    parser.add_argument("--limit", type=float, default=180, help="seconds of tests for one change")
    parser.add_argument(
        "--verbose", action="store_true", help="name the test that notices a change, too"
    )
    options = parser.parse_args()

    trees = SimpleQueue()
    for job in range(options.jobs):
        trees.put(_copy_tree(BUILD / f"tree-{job}"))
    first = BUILD / "tree-0"
    commit = (options.data / "commit").read_text().strip()
    modules = sorted({*_changed_tests(commit), *options.tests})
    collected = []
    if modules:
        _, output = _run(first, ["--collect-only", *modules], 60)
        collected = [
            line for line in output.splitlines() if line.startswith("tests/") and "::" in line
        ]
    covering = CoveringTests(options.data, commit, modules, collected)
    named = [test for test in collected if test.startswith(tuple(options.tests or ["-"]))]
    mutants = _draw(options, covering, named)
    print(
        f"{len(mutants)} changes of {' '.join(options.folders) or 'all folders'}, seed {options.seed}",
        flush=True,
    )
    runner = Runner(covering, options.limit)

    def noticed_by(mutant: Mutant) -> str | None:
        tree = trees.get()
        started = time.monotonic()
        try:
            result = runner.noticed_by(mutant, tree, 1_000_000_000 + mutants.index(mutant))
        finally:
            trees.put(tree)
        report(mutant, result, time.monotonic() - started)
        return result

    def report(mutant: Mutant, result: str | None, seconds: float) -> None:
        place = f"{mutant.path}:{mutant.change.line}"
        if result is None:
            before, after = mutant.texts()
            tests = len(mutant.tests)
            print(f"{place}: {before}\n    -> {after}   ({tests} tests run it)", flush=True)
        elif options.verbose:
            print(f"noticed: {place}: by {result} in {seconds:.0f} s", flush=True)

    def try_all(tried: list[Mutant]) -> dict[int, str | None]:
        with ThreadPoolExecutor(options.jobs) as pool:
            return dict(zip(map(id, tried), pool.map(noticed_by, tried), strict=True))

    started = time.monotonic()
    results = try_all(mutants)
    # A test that fails without a change, too, has noticed nothing.
    noticing = sorted({result for result in results.values() if result in covering.seconds})
    _, output = _run(first, [*noticing], 600)
    failing = set(re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE))
    if failing:
        print(f"{len(failing)} tests fail without a change: {' '.join(sorted(failing))}")
    total, unnoticed = Counter(), Counter()
    for mutant in mutants:
        folder = str(Path(mutant.path).relative_to("src/pellucid").parent).partition("/")[0]
        total[folder] += 1
        if results[id(mutant)] is None:
            unnoticed[folder] += 1
    for folder, count in sorted(total.items()):
        print(f"{folder:12} {count - unnoticed[folder]:4} of {count:4} noticed")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
