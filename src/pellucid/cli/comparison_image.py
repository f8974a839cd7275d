"""A comparison as an image file, by matplotlib (the extra `pellucid[plot]`)."""

from importlib.util import find_spec
from pathlib import Path

from pellucid.cli.comparison import Comparison
from pellucid.cli.comparison_text import X_LABEL, Y_LABEL, verdict

SUFFIXES = (".png", ".svg", ".pdf")


def check_image_path(path: Path) -> None:
    """Finds out before the runs, not after them, what would keep the image from being written.

    Raises:
        ValueError: matplotlib is missing, or the path cannot be one.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--plot {path}: must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"--plot {path}: there is no directory {path.parent}")
    if find_spec("matplotlib") is None:
        raise ValueError("--plot: needs matplotlib; install it with: pip install 'pellucid[plot]'")


def write_image(comparison: Comparison, path: Path) -> None:
    """Draws the time of one token against the length of the text: a dot each, and their median."""
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
    axes.set_title(verdict(comparison), fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)
