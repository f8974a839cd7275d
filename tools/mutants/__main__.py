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
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cpp_changes
import python_changes
from covering_tests import CoveringTests, Processes
from trees import Mutant, Tree, files, git, import_libraries

BUILD = Path("build/mutants")
EQUAL = Path(__file__).with_name("equal.json")
NOT_RUN_HERE = re.compile("csrc/.*(neon|amx)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    add = parser.add_argument
    add(
        "folders", nargs="*", help="of src/pellucid, or files there; or csrc; without: src/pellucid"
    )
    add("--count", type=int, default=100)
    add("--seed", type=int, default=random.randrange(10_000))
    add("--since", help="a commit: only lines that have changed since")
    add("--tests", nargs="*", default=[], help="files of tests that run for every change")
    add("--jobs", type=int, default=os.cpu_count())
    add("--coverage", type=Path, default=BUILD / "coverage", help="which tests run which line")
    add("--limit", type=float, default=180, help="seconds of tests for one change")
    add("--verbose", action="store_true", help="name the test that notices a change, too")
    return parser.parse_args()


def _changed_lines(since: str, path: str) -> set[int]:
    hunks = [
        re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", it) for it in git("diff", "-U0", since, "--", path)
    ]
    return {int(hunk[1]) + i for hunk in hunks if hunk for i in range(int(hunk[2] or 1))}


def _draw(options: argparse.Namespace, covering: CoveringTests) -> Iterator[Mutant]:
    """One change of each line that tests run, in random order, none of them listed as equal."""
    equal = {(it["file"], it["line"], it["change"]) for it in json.loads(EQUAL.read_text())}
    folders = tuple(
        it
        if it.startswith("csrc")
        else f"src/pellucid/{it}".removesuffix("/") + "/" * (not it.endswith(".py"))
        for it in options.folders or [""]
    )
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in files():
        if (
            not path.startswith(folders)
            or not path.endswith((".py", ".cpp", ".h"))
            or NOT_RUN_HERE.match(path)
        ):
            continue
        lines = _changed_lines(options.since, path) if options.since else None
        if lines == set():
            continue
        source = Path(path).read_bytes()
        if path.endswith(".py"):
            changes, tests = python_changes.changes(source), covering.of_file(path, source.decode())
        else:
            changes = cpp_changes.changes(source)
            tests = {it.line: covering.of_folders("tests/native", "tests/model") for it in changes}
        for change in changes:
            if change.line in tests and (lines is None or change.line in lines):
                mutant = Mutant(path, change, tests[change.line])
                by_line.setdefault((path, change.line), []).append(mutant)
    generator = random.Random(options.seed)
    for line in generator.sample(sorted(by_line), len(by_line)):
        mutant = generator.choice(by_line[line])
        if (mutant.path, *mutant.lines()) not in equal:
            yield mutant


def _try_all(
    tree: Tree, trials: list[tuple[Mutant, Processes]], is_verbose: bool
) -> list[tuple[Mutant, str | None]]:
    """Each mutant with what noticed it."""
    results = []
    for mutant, processes in trials:
        started = time.monotonic()
        noticed_by = tree.noticed_by(mutant, processes)
        results.append((mutant, noticed_by))
        if noticed_by is None or is_verbose:
            (before, after), seconds = mutant.lines(), time.monotonic() - started
            place = f"{mutant.path}:{mutant.change.line}"
            facts = f"{len(mutant.tests)} tests run it, {seconds:.0f} s"
            print(
                f"{place}: {before}\n    -> {after}\n    noticed by {noticed_by or 'nothing'}, {facts}",
                flush=True,
            )
    return results


def main() -> None:
    options = _options()
    is_native = any(folder.startswith("csrc") for folder in options.folders)
    # A build takes all cores.
    names = ["native"] if is_native else [f"tree-{job}" for job in range(options.jobs)]
    trees = [Tree(BUILD / name, is_native) for name in names]
    import_libraries()
    covering = CoveringTests(
        options.coverage,
        options.tests,
        lambda modules: trees[0].run(["pytest", "--collect-only", *modules], 100)[1],
    )

    def side_by_side(mutants: list[Mutant]) -> list[tuple[Mutant, str | None]]:
        trials = [(it, covering.processes(it.tests, options.limit)) for it in mutants]
        shares = [trials[job :: len(trees)] for job in range(len(trees))]
        with ProcessPoolExecutor(len(trees), mp_context=get_context("fork")) as pool:
            results = pool.map(_try_all, trees, shares, itertools.repeat(options.verbose))
            return list(itertools.chain(*results))

    started = time.monotonic()
    drawn = _draw(options, covering)
    tried: list[tuple[Mutant, str | None]] = []
    while some := list(itertools.islice(drawn, options.count - len(tried))):
        # What does not compile is no mistake that a test could notice.
        tried += [it for it in side_by_side(some) if it[1] != "the compiler"]
    # A test that fails without a change, too, has noticed nothing.
    noticing = {by for _, by in tried if by in covering.tests}
    while failing := trees[0].failing(sorted(noticing), 600) & covering.tests:
        print("fail without a change:", *sorted(failing))
        covering.tests -= failing
        tried, again = (
            [it for it in tried if it[1] not in failing],
            [it for it, by in tried if by in failing],
        )
        anew = side_by_side(again)
        noticing = {by for _, by in anew if by in covering.tests}
        tried += anew
    total = Counter(mutant.folder() for mutant, _ in tried)
    noticed = Counter(mutant.folder() for mutant, by in tried if by)
    for folder, count in sorted(total.items()):
        print(f"{folder:12} {noticed[folder]:4} of {count:4} noticed")
    print(f"{time.monotonic() - started:.0f} s, seed {options.seed}")


if __name__ == "__main__":
    main()
