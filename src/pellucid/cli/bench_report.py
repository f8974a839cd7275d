"""Measurements of `bench` as a table, as JSON and as an image."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.output.summary import formats, machine_name
from pellucid.cli.output.terminal import print_table, wrapped
from pellucid.cli.output.units import counted, flops, num_bytes, rate
from pellucid.inputs.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.measurement import Measurement
    from pellucid.facts.machine import Machine

COLUMNS = (
    "test",
    "speed",
    "spread",
    "bytes per step",
    "of bandwidth",
    "operations per step",
    "of peak",
)
WORKLOAD_FACTS = ("test", "batch", "depth", "temperature", "top_p")
EXPLANATION = """\
pp512: prefill of a prompt of 512 tokens. tg64@128x8: decode of 64 tokens for each of 8 sequences with 128
tokens in the KV cache; the speed is that of all 8 together. Bytes and operations are the least that a step
needs. The shares are of this machine's measured bandwidth and peak, at the median speed."""
BAR_HEIGHT = 0.4


def print_bench(
    name: str,
    measurements: "Sequence[Measurement]",
    config: EngineConfig,
    machine: "Machine",
) -> None:
    """Writes everything on stdout."""
    print(f"{wrapped(formats(name, config))}\n{wrapped(machine_line(machine))}\n")
    print_table(COLUMNS, [cells(measurement, machine) for measurement in measurements])
    print(f"\n{wrapped(EXPLANATION)}", flush=True)


def machine_line(machine: "Machine") -> str:
    """The ceilings."""
    threads = counted(machine.num_threads, "thread")
    peaks = ", ".join(
        f"{name} {peak / 1e9:.0f}"
        for name, peak in (
            ("int8", machine.peak_int8_ops),
            ("bf16", machine.peak_bf16_flops),
            ("f32", machine.peak_f32_flops),
        )
    )
    bandwidth = machine.bandwidth_bytes_per_second / 1e9
    name = machine_name() if machine.device is None else machine.device.words
    return f"{name}, {machine.isa}, {threads}: memory {bandwidth:.1f} GB/s; GOP/s: {peaks}"


def speed(measurement: "Measurement") -> str:
    """The median."""
    return rate(measurement.workload.num_tokens, measurement.median_seconds)


def cells(measurement: "Measurement", machine: "Machine") -> tuple[str, ...]:
    """One for each of `COLUMNS`."""
    return (
        measurement.workload.test,
        speed(measurement),
        f"{measurement.spread:.0%}" if len(measurement.seconds) > 1 else "-",
        num_bytes(measurement.bytes_per_step),
        f"{measurement.bandwidth_share(machine):.0%}",
        flops(measurement.flops_per_step),
        f"{measurement.peak_share(machine):.0%} {measurement.arithmetic}",
    )


def bench_objects(
    measurements: "Sequence[Measurement]", config: EngineConfig, machine: "Machine"
) -> list[dict[str, Any]]:
    """An object for each test, and the machine's."""
    tests = [measurement_object(measurement, config, machine) for measurement in measurements]
    facts = {name: value for name, value in asdict(machine).items() if value is not None}
    return [*tests, facts]


def measurement_object(
    measurement: "Measurement", config: EngineConfig, machine: "Machine"
) -> dict[str, Any]:
    return {
        **{name: getattr(measurement.workload, name) for name in WORKLOAD_FACTS},
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "tokens_per_second": measurement.tokens_per_second,
        "spread": measurement.spread,
        "bytes_per_step": measurement.bytes_per_step,
        "flops_per_step": measurement.flops_per_step,
        "bandwidth_share": measurement.bandwidth_share(machine),
        "peak_share": measurement.peak_share(machine),
    }


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
    axes.set_xlabel("share of this machine's measured ceiling (%)")
    axes.set_title(f"{formats(name, config)}\n{machine_line(machine)}", fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)
