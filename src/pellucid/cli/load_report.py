"""Shows the results of a load on a server: as a table, as JSON and as an image."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.output.terminal import print_table, visible, wrapped
from pellucid.cli.output.units import seconds

if TYPE_CHECKING:
    from pellucid.benchmark.load.result import LoadResult, ServiceLevel, Spread
    from pellucid.benchmark.load.traffic import Traffic

NAMES = {
    "first_token": "first token",
    "inter_token": "between tokens",
    "per_token": "per token",
    "end_to_end": "whole answer",
}
EXPLANATION = """\
From sending a request to its first token; between two pieces of an answer, of one token each or more;
per token after the first one, on average over an answer; from sending a request to the end of its answer."""


@dataclass(frozen=True)
class Load:
    """A load: its traffic, its server and its results."""

    url: str
    model: str
    api: str
    traffic: "Traffic"
    result: "LoadResult"

    @property
    def title(self) -> str:
        traffic = self.traffic
        when = f"{traffic.concurrency} at a time"
        if traffic.rate is not None:
            when = f"{traffic.rate:g} per second at random times"
        shared = ""
        if traffic.prefix_tokens:
            which = "one shared beginning"
            if traffic.num_prefixes > 1:
                which = f"one of {traffic.num_prefixes} shared beginnings"
            shared = f" after {which} of {traffic.prefix_tokens}"
        return (
            f"{self.model} at {self.url} ({self.api}): {traffic.num_requests} requests, {when}; prompts"
            f" {traffic.prompts} tokens{shared}, answers {traffic.outputs}; seed {traffic.seed}"
        )


def print_load(load: Load) -> None:
    """Writes everything on stdout."""
    from pellucid.benchmark.load.result import PERCENTILES

    result = load.result
    print(f"{wrapped(visible(load.title))}\n")
    titles = ("", "mean", *(f"p{each}" for each in PERCENTILES), "longest")
    rows = [(NAMES[name], *_cells(spread)) for name, spread in result.spreads().items()]
    print_table(titles, rows)
    print()
    for label, text in _lines(result):
        print(wrapped(visible(f"{label}: {text}")))
    print(f"\n{wrapped(EXPLANATION)}", flush=True)


def _cells(spread: "Spread | None") -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 6
    return tuple(map(seconds, (spread.mean, *spread.percentiles, spread.largest)))


def _lines(result: "LoadResult") -> list[tuple[str, str]]:
    """The lines besides the table: label and text."""
    num_done, num_sent = len(result.completed), len(result.outcomes)
    lines = [("completed", f"{num_done} of {num_sent} requests in {seconds(result.seconds)}")]
    rates = f"{result.per_second(num_done):.2f} requests/s"
    rates += f", output {result.per_second(result.num_output_tokens):.1f} tok/s"
    if (num_prompt := result.num_prompt_tokens) is not None:
        rates += f", prompts {result.per_second(num_prompt):.1f} tok/s"
        if (num_cached := result.num_cached_tokens) is not None:
            rates += f", {num_cached / max(1, num_prompt):.0%} of them from the prefix cache"
    lines.append(("throughput", rates))
    if result.level.is_set:
        good = result.num_good
        share = f"{good} of {num_sent} requests within {_level(result.level)}"
        lines.append(("goodput", f"{result.per_second(good):.2f} requests/s: {share}"))
    for failure, count in result.failures.most_common():
        lines.append(("failed", f"{count} x {failure}: {result.message_of(failure)}"))
    return lines


def _level(level: "ServiceLevel") -> str:
    limits = (("to the first token", level.first_token), ("per token", level.inter_token))
    return " and ".join(f"{seconds(most)} {what}" for what, most in limits if most is not None)


def load_object(load: Load) -> dict[str, Any]:
    """All of it; times in seconds, rates per second."""
    from pellucid.benchmark.load.result import PERCENTILES

    result = load.result

    def spread(values: "Spread | None") -> dict[str, float] | None:
        if values is None:
            return None
        named = zip((f"p{each}" for each in PERCENTILES), values.percentiles, strict=True)
        return {"mean": values.mean, **dict(named), "max": values.largest}

    return {
        "url": load.url,
        "model": load.model,
        "api": load.api,
        "traffic": asdict(load.traffic),
        "seconds": result.seconds,
        "num_requests": len(result.outcomes),
        "num_completed": len(result.completed),
        "failures": dict(result.failures),
        "largest_send_delay": result.largest_delay,
        **{f"{name}_seconds": spread(values) for name, values in result.spreads().items()},
        "requests_per_second": result.per_second(len(result.completed)),
        "output_tokens_per_second": result.per_second(result.num_output_tokens),
        "num_output_tokens": result.num_output_tokens,
        "num_prompt_tokens": result.num_prompt_tokens,
        "num_cached_tokens": result.num_cached_tokens,
        "slo": asdict(result.level),
        "num_good": result.num_good if result.level.is_set else None,
        "goodput": result.per_second(result.num_good) if result.level.is_set else None,
        "requests": [asdict(outcome) for outcome in result.outcomes],
    }


def write_load_image(load: Load, path: Path) -> None:
    """Draws which share of requests, or of gaps between tokens, took at most how long."""
    from matplotlib.figure import Figure

    result = load.result
    values: dict[str, list[float | None]] = {
        "first token": [each.first_token_seconds for each in result.completed],
        "per token": [each.seconds_per_token for each in result.completed],
        "whole answer": [each.ended - each.sent for each in result.completed],
    }
    limits = {"first token": result.level.first_token, "per token": result.level.inter_token}
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, (name, measured) in zip(figure.subplots(1, 3), values.items(), strict=True):
        known = sorted(1e3 * value for value in measured if value is not None)
        axes.step(
            [known[0] if known else 0.0, *known],
            [100 * rank / max(1, len(known)) for rank in range(len(known) + 1)],
            where="post",
        )
        if (limit := limits.get(name)) is not None:
            axes.axvline(1e3 * limit, color="black", linewidth=0.8, linestyle="--", label="SLO")
            axes.legend()
        axes.set_xlim(left=0)
        axes.set_ylim(0, 100)
        axes.set_xlabel(f"{name} (ms)")
        axes.set_ylabel("share of requests (%)")
    figure.suptitle(wrapped(load.title), fontsize="medium")
    figure.savefig(path, dpi=150)
