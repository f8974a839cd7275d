"""A comparison for people: a table, a verdict, a plot and what they show."""

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.cli.comparison import REFERENCE_LENGTH, Comparison
from pellucid.cli.terminal import print_table
from pellucid.cli.text_plot import Curve, text_plot
from pellucid.cli.units import flops, num_bytes, seconds, times

X_LABEL = "length of the text (tokens)"
Y_LABEL = "time of one token (ms)"
EXPLANATION = """\
The only difference: after each token the naive loop forgets the keys and values that it computed,
and reads the whole text again for the next one, so its cost per token grows with the text. With
the cache one token passes through the model, however long the text is."""


@dataclass(frozen=True)
class Row:
    """A line of the table; the ratio is empty where it says nothing."""

    name: str
    cached: str
    naive: str
    ratio: str = ""


def print_comparison(comparison: Comparison) -> None:
    """Writes everything on stdout."""
    labels = (comparison.cached.label, comparison.naive.label)
    lines = [(row.name, row.cached, row.naive, row.ratio) for row in rows(comparison)]
    print_table(("", *labels, "ratio"), lines)
    print(verdict(comparison))
    lengths = comparison.lengths(REFERENCE_LENGTH)
    if lengths:
        print(speed(comparison, lengths[-1]))
        if REFERENCE_LENGTH in lengths[:-1]:
            print(speed(comparison, REFERENCE_LENGTH))
        print(f"\n{plot(comparison)}")
    print(f"\n{EXPLANATION}", flush=True)


def rows(comparison: Comparison) -> list[Row]:
    """What each arm did and took."""
    arms = (comparison.cached, comparison.naive)
    comparable = arms[0].num_output_tokens == arms[1].num_output_tokens

    def row(name: str, values: tuple[float, float], show: Callable[[float], str]) -> Row:
        cached, naive = values
        ratio = times(naive / cached) if comparable and cached else ""
        return Row(name, show(cached), show(naive), ratio)

    def metric(name: str) -> tuple[float, float]:
        cached, naive = (getattr(arm.output.metrics, name) or 0 for arm in arms)
        return cached, naive

    def count(value: float) -> str:
        return f"{value:,.0f}"

    return [
        Row("output tokens", *(count(arm.num_output_tokens) for arm in arms)),
        row("tokens through the model", metric("num_processed_tokens"), count),
        Row("  as the formulas say", *(count(arm.expected_token_passes) for arm in arms)),
        row("operations", metric("flops"), flops),
        row("first token after", metric("time_to_first_token"), seconds),
        row("all tokens after", (arms[0].total_seconds, arms[1].total_seconds), seconds),
        *(
            row(
                f"one token, at {length} tokens",
                (arms[0].seconds_at(length), arms[1].seconds_at(length)),
                seconds,
            )
            for length in comparison.lengths(REFERENCE_LENGTH)
        ),
        Row("KV kept between steps", *map(num_bytes, metric("kv_cache_bytes"))),
    ]


def verdict(comparison: Comparison) -> str:
    """Whether both arms said the same."""
    num_tokens = comparison.num_common
    if not comparison.identical_tokens:
        first = comparison.first_difference
        where = num_tokens if first is None else first
        return f"same tokens: NO, they part at output token {where}"
    logprobs = "the same to the last bit" if comparison.identical_logprobs else "NOT the same"
    stopped = "" if comparison.complete else ", as far as the shorter run got"
    return f"same tokens: yes, all {num_tokens}{stopped}; their log-probabilities are {logprobs}"


def speed(comparison: Comparison, length: int) -> str:
    """The ratio of the two speeds."""
    ratio = times(comparison.speed_ratio(length))
    return f"speed: {ratio} with the cache, at {length} tokens"


def plot(comparison: Comparison) -> str:
    """Time of one token against the length of the text."""
    return text_plot(
        [
            Curve(arm.label, marker, [(x, y * 1e3) for x, y in arm.seconds_by_length.items()])
            for arm, marker in ((comparison.naive, "x"), (comparison.cached, "o"))
        ],
        x_label=X_LABEL,
        y_label=Y_LABEL,
    )
