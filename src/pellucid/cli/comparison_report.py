"""Shows a comparison: a table, a verdict and a plot, as text or as an image."""

from collections.abc import Callable
from pathlib import Path

from pellucid.cli.comparison import REFERENCE_LENGTH, Comparison
from pellucid.cli.output.terminal import print_table, wrapped
from pellucid.cli.output.text_plot import Curve, text_plot
from pellucid.cli.output.units import flops, num_bytes, seconds, times

X_LABEL = "prompt and output so far (tokens)"
Y_LABEL = "time per token (ms)"
EXPLANATION = """\
Without the cache the keys and values of all tokens are computed again for each new token, so the time
per token grows with the text. With the cache only the newest token passes through the model."""


def print_comparison(comparison: Comparison, subject: str) -> None:
    """Writes everything on stdout; the subject is the model, its formats and the machine."""
    labels = (comparison.cached.label, comparison.naive.label)
    print(f"{wrapped(subject)}\n")
    print_table(("", *labels, "without vs with"), rows(comparison))
    print(f"\n{wrapped(verdict(comparison))}")
    if (length := comparison.quoted_length) is not None:
        print(f"speed: {times(comparison.speed_ratio(length))} with the cache, at {length} tokens")
        print(f"\n{plot(comparison)}")
    print(f"\n{wrapped(EXPLANATION)}", flush=True)


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """What each arm did and how long it took, and the ratio, which is empty where it says nothing."""
    arms = (comparison.cached, comparison.naive)
    num_tokens = (arms[0].num_output_tokens, arms[1].num_output_tokens)
    comparable = num_tokens[0] == num_tokens[1]

    def row(
        name: str, values: tuple[float, float], show: Callable[[float], str], compares: bool = True
    ) -> tuple[str, ...]:
        cached, naive = values
        ratio = times(naive / cached) if compares and comparable and cached else ""
        return name, show(cached), show(naive), ratio

    def metric(name: str) -> tuple[float, float]:
        cached, naive = (getattr(arm.output.metrics, name) or 0 for arm in arms)
        return cached, naive

    def count(value: float) -> str:
        return f"{value:,.0f}"

    return [
        row("output tokens", num_tokens, count, compares=False),
        row("tokens through the model", metric("num_processed_tokens"), count),
        row("operations", metric("flops"), flops),
        row("time to first token", metric("time_to_first_token"), seconds),
        row("total time", (arms[0].total_seconds, arms[1].total_seconds), seconds),
        *(
            row(
                f"time per token at {length}",
                (arms[0].seconds_at(length), arms[1].seconds_at(length)),
                seconds,
            )
            for length in comparison.lengths(REFERENCE_LENGTH)
        ),
        row("KV cache at the end", metric("kv_cache_bytes"), num_bytes, compares=False),
    ]


def verdict(comparison: Comparison) -> str:
    """Whether both arms gave the same tokens and log-probabilities."""
    num_tokens = comparison.num_common
    if not comparison.identical_tokens:
        first = comparison.first_difference
        where = num_tokens if first is None else first
        return f"same tokens: NO, they differ from output token {where} on"
    logprobs = "the same to the last bit" if comparison.identical_logprobs else "NOT the same"
    stopped = "" if comparison.complete else ", as far as the shorter run got"
    return f"same tokens: yes, all {num_tokens}{stopped}; log-probabilities: {logprobs}"


def plot(comparison: Comparison) -> str:
    """Time per token against the length of the text."""
    return text_plot(
        [
            Curve(arm.label, marker, [(x, y * 1e3) for x, y in arm.seconds_by_length.items()])
            for arm, marker in ((comparison.naive, "x"), (comparison.cached, "o"))
        ],
        x_label=X_LABEL,
        y_label=Y_LABEL,
    )


def write_image(comparison: Comparison, subject: str, path: Path) -> None:
    """Draws the time per token against the length of the text: a dot each, and their median."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for arm in (comparison.naive, comparison.cached):
        by_length = arm.seconds_by_length
        lengths = list(by_length)
        medians = [1e3 * arm.seconds_at(length) for length in lengths]
        (line,) = axes.plot(lengths, medians, label=arm.label)
        every_token = [1e3 * duration for duration in by_length.values()]
        axes.plot(lengths, every_token, ".", color=line.get_color(), alpha=0.4)
    axes.set(xlabel=X_LABEL, ylabel=Y_LABEL)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{subject}\n{verdict(comparison)}", fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)
