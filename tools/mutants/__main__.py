"""Makes mistakes in the source, one at a time, and says which of them no test notices: docs/testing.md."""

import argparse
import itertools
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from changes import Change, changes
from covering import CoveringTests
from tree import Tree, git

BUILD = Path("build/mutants").resolve()
EQUAL = json.loads(Path(__file__).with_name("equal.json").read_text())
NOT_RUN_HERE = re.compile("csrc/.*(neon|amx)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    add = parser.add_argument
    add("folders", nargs="*", help="of src/pellucid, or files there; or csrc; none: all of it")
    add("--count", type=int, default=100)
    add("--seed", type=int, default=random.randrange(10_000))
    add("--since", help="a commit: only lines that have changed since")
    add("--tests", nargs="*", default=[], help="files of tests that run for every change")
    add("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


class Mutant(NamedTuple):
    path: str
    change: Change
    source: str
    tests: set[str]

    def lines(self) -> tuple[str, str]:
        """The changed line, or lines, before and after."""
        begin = self.source.rfind("\n", 0, self.change.start) + 1
        end = self.source.find("\n", self.change.end)
        before, after = (
            " ".join(each[begin : end + len(each) - len(self.source)].split())
            for each in (self.source, self.change.applied_to(self.source))
        )
        return before, after

    def is_equal(self) -> bool:
        listed = ((it["file"], it["line"], it["change"]) for it in EQUAL)
        return (self.path, *self.lines()) in listed


def _changed_lines(since: str, path: str) -> set[int]:
    hunks = re.findall(r"(?m)^@@ .* \+(\d+)(?:,(\d+))? @@", git("diff", "-U0", since, "--", path))
    return {int(first) + i for first, count in hunks for i in range(int(count or 1))}


def _draw(options: argparse.Namespace, covering: CoveringTests) -> Iterator[Mutant]:
    """One change of each line that tests run, in random order, none of them listed as equal."""
    folders = [
        it if it.startswith("csrc") else f"src/pellucid/{it}" for it in options.folders or [""]
    ]
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in git("ls-files", *folders).splitlines():
        if not path.endswith((".py", ".cpp", ".h")) or NOT_RUN_HERE.match(path):
            continue
        tests, source = covering.of_lines(path), Path(path).read_text()
        lines = _changed_lines(options.since, path) if options.since else tests.keys()
        for change in changes(path, source):
            if change.line in lines & tests.keys():
                mutant = Mutant(path, change, source, tests[change.line])
                by_line.setdefault((path, change.line), []).append(mutant)
    generator = random.Random(options.seed)
    for line in generator.sample(sorted(by_line), len(by_line)):
        mutant = generator.choice(by_line[line])
        if not mutant.is_equal():
            yield mutant


def _show(mutant: Mutant, noticed_by: str | None) -> None:
    before, after = mutant.lines()
    fails_anyway = f"{noticed_by}, which fails without it, too" if noticed_by else "nothing"
    print(f"{mutant.path}:{mutant.change.line}: {before}\n    -> {after}")
    print(f"    noticed by {fails_anyway}; {len(mutant.tests)} tests run it", flush=True)


def main() -> None:
    options, begun = _options(), time.monotonic()
    is_native = any(folder.startswith("csrc") for folder in options.folders)
    # What is tracked, as it is now. A build takes all cores.
    commit = (git("stash", "create") or git("rev-parse", "HEAD")).strip()
    names = ["native"] if is_native else [f"tree-{job}" for job in range(options.jobs)]
    trees: SimpleQueue[Tree] = SimpleQueue()
    for name in names:
        trees.put(Tree(BUILD / name, commit, is_native))
    covering = CoveringTests(BUILD / "coverage", options.tests)

    def attempt(mutant: Mutant) -> tuple[Mutant, str | None]:
        tree = trees.get()
        try:
            stages = covering.stages(mutant.tests)
            noticed_by = tree.noticed_by(mutant.path, mutant.change, stages)
        finally:
            trees.put(tree)
        if noticed_by is None:
            _show(mutant, noticed_by)
        return mutant, noticed_by

    drawn = _draw(options, covering)
    tried: list[tuple[Mutant, str | None]] = []
    with ThreadPoolExecutor(len(names)) as pool:
        while some := list(itertools.islice(drawn, options.count - len(tried))):
            # What does not compile is no mistake that a test could notice.
            tried += [it for it in pool.map(attempt, some) if it[1] != "the compiler"]
    # A test that fails without a change, too, has noticed nothing.
    noticing = {noticed_by for _, noticed_by in tried if noticed_by in covering.tests}
    failing = trees.get().failing(sorted(noticing))
    total: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for mutant, noticed_by in tried:
        folder = mutant.path.removeprefix("src/pellucid/").partition("/")[0]
        total[folder] += 1
        noticed[folder] += noticed_by is not None and noticed_by not in failing
        if noticed_by in failing:
            _show(mutant, noticed_by)
    for folder, count in sorted(total.items()):
        print(f"{folder:12} {noticed[folder]:4} of {count:4} noticed")
    print(f"{time.monotonic() - begun:.0f} s, seed {options.seed}")


if __name__ == "__main__":
    main()
