"""Measurements as an image file, by matplotlib (the extra `pellucid[plot]`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pellucid.cli.bench_text import machine_line, speed, title
from pellucid.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.machine import Machine
    from pellucid.benchmark.measurement import Measurement

BAR_HEIGHT = 0.4


def write_bench_image(
    name: str,
    measurements: "Sequence[Measurement]",
    config: EngineConfig,
    machine: "Machine",
    path: Path,
) -> None:
    """Draws, for each test, the shares of the machine's bandwidth and peak that it reached."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.5 + 0.5 * len(measurements)), layout="constrained")
    axes = figure.add_subplot()
    rows = range(len(measurements))
    shares = {
        "of memory bandwidth": [m.bandwidth_share(machine) for m in measurements],
        "of peak arithmetic": [m.peak_share(machine) for m in measurements],
    }
    for index, (label, values) in enumerate(shares.items()):
        axes.barh(
            [row + index * BAR_HEIGHT for row in rows],
            [100 * value for value in values],
            height=BAR_HEIGHT,
            label=label,
        )
    axes.set_yticks(
        [row + BAR_HEIGHT / 2 for row in rows],
        [f"{m.workload.test}\n{speed(m)}" for m in measurements],
    )
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlim(0, max(105, 105 * max(max(values) for values in shares.values())))
    axes.set_xlabel("share reached (%)")
    axes.set_title(f"{title(name, config)}\n{machine_line(machine)}", fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)
