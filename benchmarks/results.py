"""The results of a comparison: tokens per second, spreads, ratios."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OURS = "pellucid"
MAX_SPREAD = 0.1  # above it something else used the machine: the best round counts
LEGEND = (
    f"± is half the spread of the rounds. * is the best of an engine's rounds, where they are more than"
    f" {MAX_SPREAD:.0%} apart; the others are medians."
)


@dataclass(frozen=True)
class Result:
    """One engine in one test.

    Args:
        test: its name.
        weight_format: class of formats that it competed in.
        engine: its name.
        settings: what the engine says of itself.
        rates: tokens per second of each round.
    """

    test: str
    weight_format: str
    engine: str
    settings: str
    rates: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """From the slowest to the fastest round, as a share of the median; None of one round."""
        if len(self.rates) == 1:
            return None
        return (max(self.rates) - min(self.rates)) / statistics.median(self.rates)

    @property
    def is_best_round(self) -> bool:
        """Whether `rate` is that of the best round, and not the median."""
        return self.spread is not None and self.spread > MAX_SPREAD

    @property
    def rate(self) -> float:
        """The figure that stands for the engine."""
        return max(self.rates) if self.is_best_round else statistics.median(self.rates)

    def as_object(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "rate": self.rate,
            "is_best_round": self.is_best_round,
            "spread": self.spread,
        }


def markdown_table(results: Sequence[Result]) -> str:
    """A row for each format and test, a column for each engine, and our ratio to each other one."""
    engines = list(dict.fromkeys(result.engine for result in results))
    others = [engine for engine in engines if engine != OURS] if OURS in engines else []
    header = ["weights", "test", *engines, *(f"vs {other}" for other in others)]
    rows = [header, ["---"] * 2 + ["---:"] * (len(header) - 2)]
    by_key = {(r.weight_format, r.test, r.engine): r for r in results}
    for weight_format, test in dict.fromkeys((r.weight_format, r.test) for r in results):
        found = {engine: by_key.get((weight_format, test, engine)) for engine in engines}
        ours = found.get(OURS)
        rows.append(
            [
                weight_format,
                test,
                *(_cell(result) for result in found.values()),
                *(_ratio(ours, found[other]) for other in others),
            ]
        )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return table if all(result.spread is None for result in results) else f"{table}\n\n{LEGEND}"


def write_plot(title: str, results: Sequence[Result], path: Path) -> None:
    """Our rate beside the others', a panel for each test: tokens per second, the more the better."""
    from matplotlib.figure import Figure

    tests = list(dict.fromkeys(result.test for result in results))
    engines = list(dict.fromkeys(result.engine for result in results))
    columns = min(2, len(tests))
    rows = -(-len(tests) // columns)
    most = max(sum(result.test == test for result in results) for test in tests)
    size = (5 * columns, rows * (1 + most / 4))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for test, axes in zip(tests, panels, strict=False):
        of_test = [result for result in results if result.test == test]
        axes.barh(
            [f"{result.weight_format} {result.engine}" for result in of_test],
            [result.rate for result in of_test],
            xerr=[
                [result.rate - min(result.rates) for result in of_test],
                [max(result.rates) - result.rate for result in of_test],
            ],
            color=[f"C{engines.index(result.engine)}" for result in of_test],
        )
        axes.set_title(test)
        axes.invert_yaxis()  # as in the table
    for axes in panels:
        axes.set_axis_off()  # of an odd number of tests
    figure.supxlabel("tokens per second")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=150)


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    cell = f"{result.rate:.1f}{'*' if result.is_best_round else ''}"
    return cell if result.spread is None else f"{cell} ± {result.spread / 2:.0%}"


def _ratio(ours: Result | None, other: Result | None) -> str:
    return f"{ours.rate / other.rate:.2f}x" if ours and other else ""
