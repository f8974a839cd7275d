"""Engines serve the same requests of mixed lengths, in turn: throughput and latency.

    python benchmarks/make_weights.py qwen2.5-0.5b /tmp/qwen
    python benchmarks/serving.py /tmp/qwen --formats int8 --engines pellucid llama.cpp

All requests are there at once, and every engine may run all of them together. Prompts have 32 to 1024
tokens, answers 16 to 256 (benchmarks/engines/traffic.py). Tables in Markdown go to stdout.
benchmarks/README.md says how to set the engines up.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contestant import Contestant
from engines.traffic import Served
from engines.worker import Test
from options import FORMATS, PROGRAMS, end_on_sigterm, interpreters, make_parser, note, processor
from results import OURS

WARM_UP = Test.parse("mix4")
ALONE = ("transformers", *PROGRAMS)  # engines without continuous batching here


@dataclass(frozen=True)
class Entry:
    """An engine with weights of one format."""

    engine: str
    weight_format: str

    @property
    def name(self) -> str:
        return f"{self.engine} {self.weight_format}"


@dataclass(frozen=True)
class Waiting:
    """Percentiles of one round, in seconds."""

    first_token_p50: float
    first_token_p95: float
    inter_token_p50: float
    inter_token_p95: float

    @classmethod
    def of(cls, served: Served) -> "Waiting":
        first = statistics.quantiles(served.first_token_seconds, n=20, method="inclusive")
        inter = statistics.quantiles(served.inter_token_seconds, n=20, method="inclusive")
        return cls(first[9], first[18], inter[9], inter[18])


@dataclass(frozen=True)
class ServingResult:
    """All rounds of one entry."""

    entry: Entry
    settings: str
    rounds: tuple[Served, ...]

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each round."""
        return [served.num_output_tokens / served.seconds for served in self.rounds]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def waiting(self) -> Waiting:
        """Each percentile's median over the rounds."""
        rounds = [asdict(Waiting.of(served)).values() for served in self.rounds]
        return Waiting(*map(statistics.median, zip(*rounds, strict=True)))

    @property
    def outside_model(self) -> float | None:
        """Share of the time."""
        shares = [
            served.outside_model_seconds / served.seconds
            for served in self.rounds
            if served.outside_model_seconds is not None
        ]
        return statistics.median(shares) if shares else None

    def as_object(self) -> dict[str, Any]:
        return {
            **asdict(self.entry),
            "settings": self.settings,
            "output_tokens_per_second": self.rates,
            "outside_model_share": self.outside_model,
            "waiting_seconds": asdict(self.waiting),
            "token_times": [served.token_times for served in self.rounds],
        }


def measure(
    weights: Path,
    entries: Sequence[Entry],
    test: Test,
    num_rounds: int,
    num_threads: int,
    pythons: dict[str, str],
) -> list[ServingResult]:
    """Each round every entry once, in turn, after a few requests to warm up."""
    with ExitStack() as stack:
        contestants = []
        for entry in entries:
            interpreter = pythons.get(entry.engine, sys.executable)
            contestant = Contestant(
                entry.engine,
                interpreter,
                weights,
                entry.weight_format,
                num_threads,
                [WARM_UP, test],
            )
            contestants.append(stack.enter_context(contestant))
            contestant.serve(WARM_UP)
            note(f"{entry.name}: {contestant.settings}")
        rounds: list[list[Served]] = [[] for _ in entries]
        for _ in range(num_rounds):
            for entry, contestant, own in zip(entries, contestants, rounds, strict=True):
                own.append(contestant.serve(test))
                note(f"{entry.name}: {own[-1].seconds:.1f} s")
        return [
            ServingResult(entry, contestant.settings, tuple(own))
            for entry, contestant, own in zip(entries, contestants, rounds, strict=True)
        ]


def markdown_table(results: Sequence[ServingResult]) -> str:
    """A row for each entry, with how many times as fast as it each of ours was."""
    ours = [result for result in results if result.entry.engine == OURS]
    header = ["engine", "output tok/s", "first token p50", "p95", "between tokens p50", "p95"]
    header += ["outside the model", *(f"{own.entry.name} is" for own in ours)]
    rows = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for result in results:
        waiting, outside = result.waiting, result.outside_model
        rows.append(
            [
                result.entry.name,
                f"{result.rate:.1f} ± {(max(result.rates) - min(result.rates)) / 2 / result.rate:.0%}",
                f"{waiting.first_token_p50:.1f} s",
                f"{waiting.first_token_p95:.1f} s",
                f"{waiting.inter_token_p50 * 1e3:.0f} ms",
                f"{waiting.inter_token_p95 * 1e3:.0f} ms",
                "" if outside is None else f"{outside:.1%}",
                *("" if own is result else f"{own.rate / result.rate:.2f}x" for own in ours),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    end_on_sigterm()
    test = Test.parse(f"mix{arguments.requests}")
    entries = [
        Entry(engine, weight_format)
        for weight_format in arguments.formats
        for engine in FORMATS[weight_format]
        if engine in arguments.engines and engine not in ALONE
    ]
    results = measure(
        arguments.weights,
        entries,
        test,
        arguments.rounds,
        arguments.threads,
        interpreters(arguments.python),
    )
    title = (
        f"{arguments.weights.name} on {processor()}, {arguments.threads} threads,"
        f" {arguments.requests} requests"
    )
    print(f"{title}\n\n{markdown_table(results)}")
    if arguments.json is not None:
        report = {"title": title, "results": [result.as_object() for result in results]}
        arguments.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
