"""Engines side by side on the same weights: tests in turn, A/B/A/B, medians, spreads and ratios.

    python benchmarks/make_weights.py qwen2.5-0.5b /tmp/qwen
    python benchmarks/versus.py /tmp/qwen --tests pp512 tg32@512 tg16@128x32

Each engine is a process of its own (benchmarks/engines), loaded once per format; while one runs, the
others are stopped. A table in Markdown goes to stdout. benchmarks/README.md says how to set the engines
up.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from contestant import Contestant
from engines.worker import Test
from options import FORMATS, end_on_sigterm, interpreters, make_parser, note, processor
from results import Result, markdown_table, write_plot

TESTS = ("pp512", "pp2048", "tg32@512", "tg32@4096", "tg16@128x32")


def compete(
    weights: Path,
    weight_format: str,
    engines: Sequence[str],
    tests: Sequence[Test],
    rounds: int,
    num_threads: int,
    pythons: dict[str, str],
) -> list[Result]:
    """Runs all tests of one format: each round every engine once, in turn."""
    with ExitStack() as stack:
        contestants = []
        for engine in engines:
            interpreter = pythons.get(engine, sys.executable)
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


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--tests", nargs="+", type=Test.parse, default=[Test.parse(t) for t in TESTS]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="also draws the medians there")
    arguments = parser.parse_args()
    end_on_sigterm()

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
            interpreters(arguments.python),
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
