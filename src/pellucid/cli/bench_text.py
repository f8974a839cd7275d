"""Measurements for people: what the machine can do, and a line for each test."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pellucid.cli.terminal import print_table
from pellucid.cli.units import flops, num_bytes, rate
from pellucid.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.machine import Machine
    from pellucid.benchmark.measurement import Measurement

COLUMNS = (
    "test",
    "speed",
    "spread",
    "bytes a step",
    "of bandwidth",
    "operations a step",
    "of peak",
)
EXPLANATION = """\
pp: reading a prompt of that many tokens. tg64@512x8: generating 64 tokens for each of 8 sequences that
have 512 in the KV cache; the speed is that of all of them. Bytes and operations are the least that a
step needs; the shares say how much of the machine's ceilings they were, at the median speed."""


def print_bench(
    name: str,
    measurements: "Sequence[Measurement]",
    config: EngineConfig,
    machine: "Machine",
) -> None:
    """Writes everything on stdout."""
    print(f"{title(name, config)}\n{machine_line(machine)}\n")
    print_table(COLUMNS, [cells(measurement, machine) for measurement in measurements])
    print(f"\n{EXPLANATION}", flush=True)


def title(name: str, config: EngineConfig) -> str:
    quantization = "as stored" if config.quantization == "none" else config.quantization
    return f"{name}, weights {quantization}, KV cache {config.kv_cache_dtype}"


def machine_line(machine: "Machine") -> str:
    """The ceilings."""
    threads = "1 thread" if machine.num_threads == 1 else f"{machine.num_threads} threads"
    peaks = ", ".join(
        f"{name} {peak / 1e9:.0f}"
        for name, peak in (
            ("int8", machine.peak_int8_ops),
            ("bf16", machine.peak_bf16_flops),
            ("f32", machine.peak_f32_flops),
        )
    )
    bandwidth = machine.bandwidth_bytes_per_second / 1e9
    return f"this machine, {machine.isa}, {threads}: memory {bandwidth:.1f} GB/s; GOP/s: {peaks}"


def speed(measurement: "Measurement") -> str:
    """The median."""
    return rate(measurement.workload.num_tokens, measurement.median_seconds)


def cells(measurement: "Measurement", machine: "Machine") -> tuple[str, ...]:
    """One for each of `COLUMNS`."""
    return (
        measurement.workload.test,
        speed(measurement),
        f"{measurement.spread:.0%}",
        num_bytes(measurement.bytes_per_step),
        f"{measurement.bandwidth_share(machine):.0%}",
        flops(measurement.flops_per_step),
        f"{measurement.peak_share(machine):.0%} {measurement.arithmetic}",
    )
