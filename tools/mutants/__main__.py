"""Makes mistakes in the source, one at a time, and says which of them no test notices: docs/testing.md."""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from changes import Change, changes
from covering import CoveringTests
from tree import enter, failing, git, noticed_by

EQUAL = json.loads(Path(__file__).with_name("equal.json").read_text())
NOT_RUN_HERE = re.compile("csrc/.*(neon|amx)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("folders", nargs="*", help="of src/pellucid, or files there; or csrc")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--since", help="a commit: only lines that have changed since")
    return parser.parse_args()


def _changed_lines(since: str, path: str) -> set[int]:
    hunks = re.findall(r"(?m)^@@ .* \+(\d+)(?:,(\d+))? @@", git("diff", "-U0", since, "--", path))
    return {int(first) + i for first, count in hunks for i in range(int(count or 1))}


def _draw(
    options: argparse.Namespace, covering: CoveringTests
) -> Iterator[tuple[Change, set[str]]]:
    """One change of each line that tests run, with these tests, in random order; none is listed as equal."""
    folders = [it if it.startswith("csrc") else f"src/pellucid/{it}" for it in options.folders or [""]]  # fmt: skip
    by_line: dict[tuple[str, int], list[tuple[Change, set[str]]]] = {}
    for path in git("ls-files", *folders).splitlines():
        if path.endswith((".py", ".cpp", ".h")) and not NOT_RUN_HERE.match(path):
            tests = covering.of_lines(path)
            lines = tests.keys() & (_changed_lines(options.since, path) if options.since else tests)
            for change in changes(path):
                if change.line in lines:
                    by_line.setdefault((path, change.line), []).append((change, tests[change.line]))
    equal = {(it["file"], it["line"], it["change"]) for it in EQUAL}
    generator = random.Random(options.seed)
    for line in generator.sample(sorted(by_line), len(by_line)):
        change, tests = generator.choice(by_line[line])
        if (change.path, *change.lines()) not in equal:
            yield change, tests


def _show(change: Change, noticed_by: str) -> None:
    before, after = change.lines()
    print(
        f"{change.path}:{change.line}: {before}\n    -> {after}\n    noticed by {noticed_by}",
        flush=True,
    )


def main() -> None:
    options = _options()
    is_native = any(it.startswith("csrc") for it in options.folders)
    build = Path("build/mutants").resolve()
    enter(build / ("native" if is_native else "tree"), is_native)
    covering = CoveringTests(build / "coverage")
    tried: list[tuple[Change, str | None]] = []
    for change, tests in _draw(options, covering):
        if len(tried) == options.count:
            break
        noticed = noticed_by(change, covering.stages(tests))
        if noticed is None:
            _show(change, f"nothing; {len(tests)} tests run it")
        if noticed != "the compiler":  # else it is no mistake that a test could notice
            tried.append((change, noticed))
    fail_anyway = failing(sorted({test for _, test in tried if test and test in covering.tests}))
    num_tried: Counter[str] = Counter()
    num_noticed: Counter[str] = Counter()
    for change, noticed in tried:
        folder = change.path.removeprefix("src/pellucid/").partition("/")[0]
        num_tried[folder] += 1
        num_noticed[folder] += noticed is not None and noticed not in fail_anyway
        if noticed in fail_anyway:
            _show(change, f"{noticed}, which fails without it, too")
    for folder, count in sorted(num_tried.items()):
        print(f"{folder:12} {num_noticed[folder]:4} of {count:4} noticed")
    print(f"seed {options.seed}")


if __name__ == "__main__":
    main()
