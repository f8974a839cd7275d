"""Makes mistakes in the source, one at a time, and says which of them no test notices: docs/testing.md."""

import argparse
import contextlib
import itertools
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import cpp_changes
import python_changes
from covering_tests import CoveringTests

from pellucid import _native

BUILD = Path("build/mutants")
EQUAL = Path(__file__).with_name("equal.json")
BIN = Path(sys.executable).parent
NINJA = [str(BIN / "ninja"), "-C", "build/native"]
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
CPP_TESTS_SECONDS = 60
MEMORY_KB = 8 << 20
# Sources for other processors.
NOT_RUN_HERE = re.compile(r"csrc/.*(neon|amx)")
# Python finds the copy, not the tree that is installed for editing.
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if "pellucid" not in type(f).__module__]
"""


class Mutant(NamedTuple):
    path: str
    change: python_changes.Change
    tests: set[str]

    def source(self) -> bytes:
        old = Path(self.path).read_bytes()
        return old[: self.change.start] + self.change.text.encode() + old[self.change.end :]

    def lines(self) -> tuple[str, str]:
        """The changed line, or lines, before and after."""
        old, new = Path(self.path).read_bytes(), self.source()
        begin = old.rfind(b"\n", 0, self.change.start) + 1
        after = len(old) - old.find(b"\n", self.change.end)
        old_line, new_line = (
            " ".join(source[begin : len(source) - after].decode().split()) for source in (old, new)
        )
        return old_line, new_line

    def folder(self) -> str:
        return re.sub(r"^(?:src/pellucid/)?([^/]*)/.*", r"\1", self.path)


def _git(*words: str) -> list[str]:
    return subprocess.check_output(["git", *words], text=True).splitlines()


def _files() -> list[str]:
    listed = _git("-c", "core.quotePath=off", "ls-files", "-co", "--exclude-standard")
    return [name for name in listed if Path(name).exists()]


def _copy_tree(tree: Path) -> Path:
    """A copy as of now. Files that are the same stay, and with them what has been compiled."""
    files = set(_files())
    for copied in [
        *tree.glob("src/**/*.py"),
        *tree.glob("tests/**/*.py"),
        *tree.glob("csrc/**/*.*"),
    ]:
        if str(copied.relative_to(tree)) not in files:
            copied.unlink()
    for name in files:
        copied, content = tree / name, Path(name).read_bytes()
        if not copied.exists() or copied.read_bytes() != content:
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(content)
    (tree / "sitecustomize.py").write_text(SITE)
    return tree


def _build_native(tree: Path) -> None:
    """Builds the C++ tests and the extension in `tree`, with asserts, in minutes rather than for speed."""
    # -fsanitize=unreachable costs nothing; what is sanitized is compiled with -O0 and -O1.
    settings = [
        "PELLUCID_TESTS=ON",
        "PELLUCID_SANITIZE=unreachable",
        "SKBUILD=ON",
        "SKBUILD_SABI_COMPONENT=",
    ]
    settings += [f"CMAKE_MAKE_PROGRAM={NINJA[0]}", f"Python_EXECUTABLE={sys.executable}"]
    command = [str(BIN / "cmake"), "-S", ".", "-B", "build/native", "-G", "Ninja"]
    subprocess.run([*command, *(f"-D{it}" for it in settings)], cwd=tree, check=True)
    subprocess.run(NINJA, cwd=tree, check=True)


def _link_extension(tree: Path, extension: Path) -> None:
    link = tree / "src/pellucid" / extension.name
    link.unlink(missing_ok=True)
    link.symlink_to(extension.resolve())


def _run(tree: Path, command: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit status and output of a command in a copy of the tree; None: it took too long."""
    paths = f"{tree.resolve()}:{(tree / 'src').resolve()}"
    with (tree / "output").open("w+") as output:
        process = subprocess.Popen(
            ["bash", "-c", f'ulimit -v {MEMORY_KB}; exec "$@"', "-", *command],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": paths},
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


def _pytest(tree: Path, arguments: list[str], seconds: float) -> tuple[int | None, str]:
    (tree / "arguments").write_text("\n".join(arguments))
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "@arguments"]
    return _run(tree, [sys.executable, "-m", "pytest", *options], seconds)


def _noticed_by(mutant: Mutant, tree: Path, processes: list[tuple[float, list[str]]]) -> str | None:
    """The test that fails, or what else says that something is wrong; None: nothing does."""
    changed = tree / mutant.path
    changed.write_bytes(mutant.source())
    try:
        if mutant.folder() == "csrc":
            if _run(tree, NINJA, 600)[0]:
                return "the compiler"
            status, output = _run(
                tree,
                [str(BIN / "ctest"), "--test-dir", "build/native", "--stop-on-failure"],
                CPP_TESTS_SECONDS,
            )
            if status != 0:
                failed = re.search(r"\d+ - (\w+) \(", output)
                return failed.group(1) if failed else "the time limit"
        for seconds, tests in processes:
            status, output = _pytest(tree, ["-x", *tests], seconds)
            if status != 0:
                failed = FAILED.search(output)
                return (
                    failed.group(1)
                    if failed
                    else f"exit status {status}"
                    if status
                    else "the time limit"
                )
        return None
    finally:
        shutil.copyfile(mutant.path, changed)


def _changed_lines(since: str, path: str) -> set[int]:
    hunks = [
        re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line)
        for line in _git("diff", "-U0", since, "--", path)
    ]
    return {int(hunk[1]) + i for hunk in hunks if hunk for i in range(int(hunk[2] or 1))}


def _draw(options: argparse.Namespace, covering: CoveringTests) -> Iterator[Mutant]:
    """One change of each line that tests run, in random order, none of them listed as equal."""
    equal = {
        (entry["file"], entry["line"], entry["change"]) for entry in json.loads(EQUAL.read_text())
    }
    folders = tuple(
        f if f.startswith("csrc") else f"src/pellucid/{f}" for f in options.folders or [""]
    )
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in _files():
        if not path.startswith(folders) or NOT_RUN_HERE.match(path):
            continue
        lines = _changed_lines(options.since, path) if options.since else None
        if lines == set() or not path.endswith((".py", ".cpp", ".h")):
            continue
        source = Path(path).read_bytes()
        if path.endswith(".py"):
            found, tests = python_changes.changes(source), covering.of_file(path, source.decode())
        else:
            found, tests = cpp_changes.changes(source), None
        for change in found:
            if (tests is None or change.line in tests) and (lines is None or change.line in lines):
                those = (
                    covering.of_folders("tests/native", "tests/model")
                    if tests is None
                    else tests[change.line]
                )
                by_line.setdefault((path, change.line), []).append(Mutant(path, change, those))
    generator = random.Random(options.seed)
    for line in generator.sample(sorted(by_line), len(by_line)):
        mutant = generator.choice(by_line[line])
        if (mutant.path, *mutant.lines()) not in equal:
            yield mutant


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "folders",
        nargs="*",
        help="of src/pellucid, or files there; or csrc; without: all of Python",
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--since", help="a commit: only lines that have changed since")
    parser.add_argument(
        "--tests", nargs="*", default=[], help="files of tests that run for every change"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--coverage", type=Path, default=BUILD / "coverage", help="which tests run which line"
    )
    parser.add_argument("--limit", type=float, default=180, help="seconds of tests for one change")
    parser.add_argument(
        "--verbose", action="store_true", help="name the test that notices a change, too"
    )
    options = parser.parse_args()

    is_native = any(folder.startswith("csrc") for folder in options.folders)
    trees: SimpleQueue[Path] = SimpleQueue()
    # A build takes all cores.
    for name in ["native"] if is_native else [f"tree-{job}" for job in range(options.jobs)]:
        tree = _copy_tree(BUILD / name)
        if is_native:
            _build_native(tree)
        _link_extension(tree, next(tree.glob("build/native/_native*.so"), Path(_native.__file__)))
        trees.put(tree)
    covering = CoveringTests(
        options.coverage,
        options.tests,
        lambda files: _pytest(tree, ["--collect-only", *files], 100)[1],
    )
    drawn = _draw(options, covering)
    print("seed", options.seed, flush=True)

    def try_one(mutant: Mutant) -> str | None:
        tree, started = trees.get(), time.monotonic()
        try:
            noticed_by = _noticed_by(
                mutant, tree, covering.processes(mutant.tests & covering.tests, options.limit)
            )
        finally:
            trees.put(tree)
        if noticed_by is None or options.verbose:
            before, after = mutant.lines()
            seconds = f"{time.monotonic() - started:.0f} s"
            print(f"{mutant.path}:{mutant.change.line}: {before}\n    -> {after}")
            print(
                f"    noticed by {noticed_by or 'nothing'}, {len(mutant.tests)} tests run it, {seconds}",
                flush=True,
            )
        return noticed_by

    started = time.monotonic()
    tried: list[tuple[Mutant, str | None]] = []
    with ThreadPoolExecutor(trees.qsize()) as pool:
        while len(tried) < options.count and (
            some := list(itertools.islice(drawn, options.count - len(tried)))
        ):
            # What does not compile is no mistake that a test could notice.
            results = zip(some, pool.map(try_one, some), strict=True)
            tried += [(mutant, by) for mutant, by in results if by != "the compiler"]
        # A test that fails without a change, too, has noticed nothing.
        trusted: set[str] = set()
        while noticing := sorted({by for _, by in tried if by in covering.tests} - trusted):
            failing = set(FAILED.findall(_pytest(tree, noticing, 600)[1]))
            trusted.update(noticing)
            covering.tests -= failing
            again = [mutant for mutant, by in tried if by in failing]
            tried = [it for it in tried if it[1] not in failing]
            tried += zip(again, pool.map(try_one, again), strict=True)
    total = Counter(mutant.folder() for mutant, _ in tried)
    noticed = Counter(mutant.folder() for mutant, by in tried if by)
    for folder, count in sorted(total.items()):
        print(f"{folder:12} {noticed[folder]:4} of {count:4} noticed")
    print(f"{time.monotonic() - started:.0f} s, seed {options.seed}")


if __name__ == "__main__":
    main()
