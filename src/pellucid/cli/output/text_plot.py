"""Plots in plain characters: no colour and no escape codes, for any monospaced font."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Points (x, y) in the order of x, drawn with a marker of one character."""

    label: str
    marker: str
    points: Sequence[tuple[float, float]]


def text_plot(
    curves: Sequence[Curve], *, x_label: str, y_label: str, width: int = 64, height: int = 12
) -> str:
    """Draws curves into `width` x `height` characters; y starts at 0.

    Each column shows the median of the points that fall into it, so a single late step neither
    bends a curve nor sets the scale. Where curves meet, the last one is seen.

    Args:
        curves: at least one point in all.
        x_label, y_label: with their units.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    left, right = min(xs), max(xs)
    columns = [_columns(curve, left, right, width) for curve in curves]
    top = max(y for medians in columns for y in medians.values()) or 1.0

    canvas = [[" "] * width for _ in range(height)]
    for curve, medians in zip(curves, columns, strict=True):
        for column, y in medians.items():
            canvas[height - 1 - round(y / top * (height - 1))][column] = curve.marker

    middle = (height - 1) // 2
    ticks = {0: f"{top:.3g}", middle: f"{top * (1 - middle / (height - 1)):.3g}", height - 1: "0"}
    margin = max(map(len, ticks.values()))
    indent = " " * (margin + 2)
    ends = f"{left:.0f}", f"{right:.0f}"
    return "\n".join(
        [
            y_label,
            *(
                f"{ticks.get(row, ''):>{margin}} |{''.join(cells)}".rstrip()
                for row, cells in enumerate(canvas)
            ),
            " " * margin + " +" + "-" * width,
            indent + ends[0] + ends[1].rjust(width - len(ends[0])),
            indent + x_label.center(width).rstrip(),
            "   ".join(f"{curve.marker} {curve.label}" for curve in curves),
        ]
    )


def _columns(curve: Curve, left: float, right: float, width: int) -> dict[int, float]:
    """The median y of each column that has points."""
    binned: dict[int, list[float]] = {}
    for x, y in curve.points:
        share = (x - left) / (right - left) if right > left else 0.0
        binned.setdefault(round(share * (width - 1)), []).append(y)
    return {column: statistics.median(ys) for column, ys in binned.items()}
