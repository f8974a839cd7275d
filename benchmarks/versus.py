"""Engines side by side on the same weights: tests in turn, A/B/A/B, medians, spreads and ratios.

    python benchmarks/make_weights.py qwen2.5-0.5b /tmp/qwen
    python benchmarks/versus.py /tmp/qwen --tests pp512 tg32@512 tg16@128x32

Each engine is a process of its own (benchmarks/engines), loaded once per format; while one runs, the
others are stopped. A table in Markdown goes to stdout. benchmarks/README.md says how to set the engines
up.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from contestant import ENGINES, Contestant
from engines.worker import Test
from results import Result, markdown_table, write_plot

FORMATS = {  # the engines that run each, ours first
    "int4": ("pellucid", "llama.cpp", "openvino"),
    "int8": ("pellucid", "llama.cpp", "openvino"),
    "bf16": ("pellucid", "llama.cpp", "vllm", "transformers"),
}
TESTS = ("pp512", "pp2048", "tg32@512", "tg32@4096", "tg16@128x32")


def compete(
    weights: Path,
    weight_format: str,
    engines: Sequence[str],
    tests: Sequence[Test],
    rounds: int,
    num_threads: int,
    interpreters: dict[str, str],
) -> list[Result]:
    """Runs all tests of one format: each round every engine once, in turn."""
    with ExitStack() as stack:
        contestants = []
        for engine in engines:
            interpreter = interpreters.get(engine, sys.executable)
            contestant = Contestant(engine, interpreter, weights, weight_format, num_threads, tests)
            contestants.append(stack.enter_context(contestant))
            note(f"{engine}: {contestant.settings}")
        results = []
        for test in tests:
            seconds: dict[str, list[float]] = {engine: [] for engine in engines}
            for contestant in contestants:
                contestant.run(test)  # warms up
            for _ in range(rounds):
                for contestant in contestants:
                    seconds[contestant.engine].append(contestant.run(test))
            for contestant in contestants:
                result = Result(
                    test.name,
                    weight_format,
                    contestant.engine,
                    contestant.settings,
                    tuple(test.num_tokens / each for each in seconds[contestant.engine]),
                )
                results.append(result)
                note(
                    f"{weight_format} {test.name} {result.engine}:"
                    f" {result.median:.1f} tok/s, spread {result.spread:.0%}"
                )
        return results


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def processor() -> str:
    """The model's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path, help="directory written by make_weights.py")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["int4", "int8", "bf16"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["pellucid", "llama.cpp"])
    parser.add_argument(
        "--tests", nargs="+", type=Test.parse, default=[Test.parse(t) for t in TESTS]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="ENGINE=PATH",
        help="interpreter of an engine, where it is not this one",
    )
    parser.add_argument("--json", type=Path, help="also writes every run there")
    parser.add_argument("--plot", type=Path, help="also draws the medians there")
    arguments = parser.parse_args()
    interpreters = dict(pair.split("=", 1) for pair in arguments.python)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the engines would stay behind

    results: list[Result] = []
    for weight_format in arguments.formats:
        engines = [name for name in FORMATS[weight_format] if name in arguments.engines]
        results += compete(
            arguments.weights,
            weight_format,
            engines,
            arguments.tests,
            arguments.rounds,
            arguments.threads,
            interpreters,
        )
    title = f"{arguments.weights.name} on {processor()}, {arguments.threads} threads"
    print(f"{title}\n\n{markdown_table(results)}")
    if arguments.json is not None:
        report = {"title": title, "results": [result.as_object() for result in results]}
        arguments.json.write_text(json.dumps(report, indent=1))
    if arguments.plot is not None:
        write_plot(title, results, arguments.plot)


if __name__ == "__main__":
    main()
