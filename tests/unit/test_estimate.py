"""Estimates: the numbers that people quote of known models, and where each comes from."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pellucid.benchmark.estimate import (
    Number,
    Workload,
    estimate,
)
from pellucid.benchmark.machine_facts import KNOWN_MACHINES, MachineFacts
from pellucid.benchmark.planned_model import PlannedModel, find_planned_model
from pellucid.facts.formulas import kv_position_bytes
from pellucid.inputs.config import EngineConfig
from pellucid.shapes import find_shape

LAPTOP = MachineFacts("laptop", "M", 20e9, 500e9, 16e9)


def numbers(
    shape: str = "qwen2.5-0.5b", machine: MachineFacts = LAPTOP, **work: float
) -> dict[str, Number]:
    model = planned(shape)
    plan = model.engine_plan(machine.memory_bytes)
    workload = Workload(**{"prompt": 50, "output": 200, **work})  # type: ignore[arg-type]
    found = estimate(model, plan, machine, workload)
    assert len({number.name for number in found}) == len(found)
    assert all(number.formula and number.provenance in "MCE" for number in found)
    return {number.name: number for number in found}


@cache
def planned(shape: str) -> PlannedModel:
    return find_planned_model(shape, EngineConfig(num_threads=1))


def test_a_cache_passes_each_token_once() -> None:
    found = numbers()
    assert found["cached_token_passes"].value == 249
    assert found["naive_token_passes"].value == 29_900


def test_keys_and_values_of_a_token() -> None:
    """Published: 12 KiB for Qwen2.5-0.5B; 4.5 bits a number with one 16-bit scale for 32, 5 with a minimum, too."""
    shape = find_shape("qwen2.5-0.5b")
    assert kv_position_bytes(shape, "bf16") == 12 * 1024
    assert kv_position_bytes(shape, "int4") == 12 * 1024 * (5 + 4.5) / 2 / 16
    keys, values = (
        8 + 16 / 32,
        8 + 16 / 64,
    )  # bits a number: keys share a scale by 32, values by head
    assert kv_position_bytes(shape, "int8") == 12 * 1024 * (keys + values) / 2 / 16
    assert kv_position_bytes(shape, "int8,int4") == 12 * 1024 * (keys + 4.5) / 2 / 16
    found = numbers(prompt=1000, output=24)
    assert found["kv_blocks_per_request"].value == 32
    assert found["kv_bytes_per_request"].value == 1024 * 12 * 1024


def test_times_are_the_larger_of_operations_and_bytes() -> None:
    found = numbers(batch=1)
    decode = found["decode_seconds"]
    assert decode.inputs["bound"] == "memory"
    assert decode.value == found["decode_bytes"].value / LAPTOP.bandwidth_bytes_per_second
    assert decode.value == pytest.approx(found["weight_bytes"].value / 20e9, rel=0.02)
    assert found["prefill_seconds"].inputs["bound"] == "compute"
    assert found["tokens_per_second"].value == 1 / decode.value
    many = numbers(batch=64)
    assert many["tokens_per_second"].value > 10 * found["tokens_per_second"].value
    assert found["bandwidth"].provenance == "M"
    assert numbers(machine=KNOWN_MACHINES["h100-80g"])["bandwidth"].provenance == "E"


@pytest.mark.parametrize(
    ("acceptance", "cost", "speedup"),
    [(0.6, 0.05, 1.92), (0.8, 0.05, 2.80), (1.0, 0.05, 4.17), (0.6, 0.1, 1.65), (0.8, 0.1, 2.40)],
)
def test_speculation_counts_the_bonus_token(acceptance: float, cost: float, speedup: float) -> None:
    found = numbers(acceptance=acceptance, num_drafts=4, draft_cost=cost)
    assert found["draft_speedup"].value == pytest.approx(speedup, abs=0.005)


def test_what_does_not_fit_is_zero_and_prices_follow_the_rate() -> None:
    small = MachineFacts("small", "E", 20e9, 500e9, 1e6)
    assert numbers(machine=small)["requests_that_fit"].value == 0
    found = numbers(price_per_hour=2.0)
    rate = found["tokens_per_second"].value
    assert found["price_per_million_tokens"].value == pytest.approx(2 / 3600 / rate * 1e6)


def test_recurrent_states_take_memory_beside_the_cache() -> None:
    """Qwen3.5 0.8B: 18 layers with 16 heads of 128 x 128 numbers in f32 and 3 columns of a convolution."""
    found = numbers("qwen3.5-0.8b", prompt=1000, output=24)
    states = found["state_bytes_per_request"].value
    assert states == 18 * 4 * (16 * 128 * 128 + 3 * 3 * 16 * 128)
    blocks = found["kv_blocks_per_request"].value * found["kv_bytes_per_token"].value * 32
    assert found["kv_bytes_per_request"].value == blocks + states
    assert "state_bytes_per_request" not in numbers()


def test_a_decode_step_reads_the_experts_that_its_tokens_choose() -> None:
    one, many = numbers("qwen3-30b-a3b"), numbers("qwen3-30b-a3b", batch=64)
    assert one["weight_bytes"].value == pytest.approx(2 * one["parameters"].value, rel=1e-3)
    decode = one["decode_weight_bytes"].value
    assert decode == pytest.approx(2 * one["active_parameters"].value, rel=1e-3)
    # Which experts a token chooses is not known before.
    assert one["decode_weight_bytes"].provenance == "E"
    assert many["decode_weight_bytes"].value > 9 * one["decode_weight_bytes"].value
    assert many["decode_weight_bytes"].value < many["weight_bytes"].value
    dense = numbers("phi-3-mini")
    decode = dense["decode_weight_bytes"].value
    assert decode == pytest.approx(2 * dense["active_parameters"].value, rel=1e-3)
    assert dense["decode_weight_bytes"].provenance == "C"


def test_the_page_of_numbers_is_written_from_the_formulas() -> None:
    script = Path(__file__).parents[2] / "docs/write_numbers.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=300)
