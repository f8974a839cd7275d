"""`pellucid bench --json`: base units, shares of 1."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pellucid.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.machine import Machine
    from pellucid.benchmark.measurement import Measurement


def bench_objects(
    measurements: "Sequence[Measurement]", config: EngineConfig, machine: "Machine"
) -> list[dict[str, Any]]:
    """An object for each test, and the machine's."""
    tests = [measurement_object(measurement, config, machine) for measurement in measurements]
    return [*tests, asdict(machine)]


def measurement_object(
    measurement: "Measurement", config: EngineConfig, machine: "Machine"
) -> dict[str, Any]:
    return {
        "test": measurement.workload.test,
        "batch": measurement.workload.batch,
        "depth": measurement.workload.depth,
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "tokens_per_second": measurement.tokens_per_second,
        "spread": measurement.spread,
        "bytes_per_step": measurement.bytes_per_step,
        "flops_per_step": measurement.flops_per_step,
        "bandwidth_share": measurement.bandwidth_share(machine),
        "peak_share": measurement.peak_share(machine),
    }
