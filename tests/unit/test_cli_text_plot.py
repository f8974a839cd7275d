"""Plots in plain characters: axes, labels and curves."""

import pytest

from pellucid.cli.output.text_plot import Curve, text_plot

LABELS = {"x_label": "tokens", "y_label": "ms"}


def test_a_small_plot_to_the_character() -> None:
    rising = Curve("rising", "x", [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)])
    flat = Curve("flat", "o", [(0, 2), (4, 2)])
    assert text_plot([rising, flat], width=9, height=5, **LABELS).splitlines() == [
        "ms",
        "4 |        x",
        "  |      x",
        "2 |o   x   o",
        "  |  x",
        "0 |x",
        "  +---------",
        "   0       4",
        "     tokens",
        "x rising   o flat",
    ]


def test_a_column_shows_the_median_so_one_late_step_does_not_set_the_scale() -> None:
    points = [(float(x), 2.0) for x in range(100)]
    points[50] = (50.0, 1000.0)
    lines = text_plot([Curve("steady", "x", points)], width=10, height=5, **LABELS).splitlines()
    assert lines[1] == "2 |" + "x" * 10


def test_the_later_curve_is_seen_where_two_meet() -> None:
    points = [(0.0, 1.0), (1.0, 1.0)]
    plot = text_plot(
        [Curve("a", "x", points), Curve("b", "o", points)], width=2, height=2, **LABELS
    )
    assert plot.splitlines()[1] == "1 |oo"


@pytest.mark.parametrize(
    ("points", "row"),
    [([(5.0, 3.0)], 1), ([(5.0, 0.0), (6.0, 0.0)], 12)],  # y = 0 is the lowest of 12
)
def test_one_point_and_all_zeros(points: list[tuple[float, float]], row: int) -> None:
    lines = text_plot([Curve("alone", "x", points)], **LABELS).splitlines()
    assert [index for index, line in enumerate(lines[:13]) if "x" in line] == [row]


def test_characters_are_plain() -> None:
    plot = text_plot([Curve("a", "x", [(0, 1), (9, 2)])], **LABELS)
    assert plot.isascii() and plot.replace("\n", "").isprintable()
