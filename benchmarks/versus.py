"""Compares engines on the same weights: tests in turn, A/B/A/B, with spreads and ratios.

    python benchmarks/make_weights.py qwen2.5-0.5b /tmp/qwen
    python benchmarks/versus.py /tmp/qwen --tests pp512 tg32@512 tg16@128x32

Each engine is a process of its own (benchmarks/engines), loaded once per format; while one runs, the
others are stopped. A table in Markdown goes to stdout. `make versus` sets the engines up and runs this;
benchmarks/README.md says what it does.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from contestant import Contestant
from engines.llama_bench_engine import find_programs
from engines.worker import Test
from options import FORMATS, PROGRAMS, end_on_sigterm, interpreters, make_parser, note, processor
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
    programs: Mapping[str, Path],
) -> list[Result]:
    """Runs all tests of one format: each round every engine once, in turn.

    Args:
        pythons: the interpreter of each engine that is in another environment than this one.
        programs: the executable of each engine that is a program.
    """
    with ExitStack() as stack:
        contestants = []
        for engine in engines:
            own_tests = [test for test in tests if can_run(engine, test)]
            if not own_tests:
                continue
            contestant = Contestant(
                engine,
                pythons.get(engine, sys.executable),
                weights,
                weight_format,
                num_threads,
                own_tests,
                programs.get(engine),
            )
            contestants.append(stack.enter_context(contestant))
            note(f"{engine}: {contestant.settings}")
        results = []
        for test in tests:
            contestants = [
                each
                for each in contestants
                if not can_run(each.engine, test) or can_warm_up(each, test)
            ]
            able = [each for each in contestants if can_run(each.engine, test)]
            seconds: dict[str, list[float]] = {each.engine: [] for each in able}
            for _ in range(rounds):
                for contestant in able:
                    seconds[contestant.engine].append(contestant.run(test))
            for contestant in able:
                result = Result(
                    test.name,
                    weight_format,
                    contestant.engine,
                    contestant.settings,
                    tuple(test.num_tokens / each for each in seconds[contestant.engine]),
                )
                results.append(result)
                note(f"{weight_format} {test.name} {result.engine}: {_rounds(result)} tok/s")
        return results


def can_warm_up(contestant: Contestant, test: Test) -> bool:
    """Runs a test once. An engine that is built for instructions that this machine does not allow ends there."""
    try:
        contestant.run(test)
    except RuntimeError as error:
        note(f"left out from {test.name} on: {error}")
        return False
    return True


def can_run(engine: str, test: Test) -> bool:
    """Whether an engine can be asked for a test: llama-bench has one sequence only."""
    return engine not in PROGRAMS or (test.batch == 1 and not test.num_requests)


def _rounds(result: Result) -> str:
    return ", ".join(f"{rate:.1f}" for rate in result.rates)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--tests", nargs="+", type=Test.parse, default=[Test.parse(t) for t in TESTS]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="also draws the rates there")
    arguments = parser.parse_args()
    end_on_sigterm()

    programs = find_programs()
    for engine in arguments.engines:
        if engine in PROGRAMS and engine not in programs:
            parser.error(f"--engines {engine}: its llama-bench is not on the PATH")
    results: list[Result] = []
    for weight_format in arguments.formats:
        wanted = {*arguments.engines, *programs}
        engines = [name for name in FORMATS[weight_format] if name in wanted]
        results += compete(
            arguments.weights,
            weight_format,
            engines,
            arguments.tests,
            arguments.rounds,
            arguments.threads,
            interpreters(arguments.python),
            programs,
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
