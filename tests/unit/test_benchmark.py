"""`pellucid bench`: what it measures and counts; not the speed."""

from dataclasses import replace

import numpy as np
import pytest

from pellucid.backends.base import Backend, StepLogits
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.ops import ForwardBatch, KVCache
from pellucid.benchmark.kv_plan import plan_kv_cache
from pellucid.benchmark.measurement import Cost, Measurement
from pellucid.benchmark.random_model import planned_matrix_bytes, random_model
from pellucid.benchmark.session import Session
from pellucid.benchmark.workloads import Decode, Prefill, Workload
from pellucid.facts import formulas
from pellucid.facts.machine import Machine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.shapes import SHAPES
from support.tiny_shape import TINY_SHAPE

MACHINE = Machine(
    isa="portable",
    num_threads=2,
    bandwidth_bytes_per_second=1000.0,
    peak_int8_ops=800.0,
    peak_bf16_flops=400.0,
    peak_f32_flops=200.0,
)


def tiny_model(
    monkeypatch: pytest.MonkeyPatch, **knobs: object
) -> tuple[LoadedModel, EngineConfig]:
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[arg-type]
    config = EngineConfig(backend="numpy", speculation="off", **knobs)  # type: ignore[arg-type]
    return random_model("tiny", config, [Prefill(1024)]), config


class WatchedDecoder:
    """Keeps the batches that a decoder was given."""

    def __init__(self, model: LoadedModel) -> None:
        self.decoder = model.decoder
        self.draws_tokens, self.num_machines = False, 1
        self.vocab_size = model.decoder.vocab_size
        self.step_weights = model.decoder.step_weights
        self.scratch_bytes = model.decoder.scratch_bytes
        self.batches: list[ForwardBatch] = []

    def step(self, batch: ForwardBatch, kv_cache: KVCache) -> StepLogits:
        self.batches.append(batch)
        return self.decoder.step(batch, kv_cache)


def watched_session(
    monkeypatch: pytest.MonkeyPatch, *workloads: Workload, **knobs: object
) -> tuple[Session, list[ForwardBatch]]:
    model, config = tiny_model(monkeypatch, **knobs)
    decoder = WatchedDecoder(model)
    return Session(replace(model, decoder=decoder), config, workloads), decoder.batches


# Workloads


@pytest.mark.parametrize(
    ("workload", "test"),
    [
        (Prefill(512), "pp512"),
        (Decode(64, 512), "tg64@512"),
        (Decode(64), "tg64@0"),
        (Decode(64, 128, 32), "tg64@128x32"),
    ],
)
def test_names(workload: Workload, test: str) -> None:
    assert workload.test == test


def test_a_decode_runs_at_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Decode(3, depth=40, batch=2)
    session, batches = watched_session(monkeypatch, workload)
    session.run(workload)
    assert [batch.positions.tolist() for batch in batches] == [[40, 40], [41, 41], [42, 42]]
    assert [batch.seq_lens.tolist() for batch in batches] == [[41, 41], [42, 42], [43, 43]]
    slots = [slot for batch in batches for slot in batch.slot_mapping[0].tolist()]
    assert len(set(slots)) == 6


def test_depth_zero_begins_at_the_first_position(monkeypatch: pytest.MonkeyPatch) -> None:
    session, batches = watched_session(monkeypatch, Decode(2))
    session.run(Decode(2))
    assert [batch.positions.tolist() for batch in batches] == [[0], [1]]


def test_a_prompt_goes_in_the_chunks_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    session, batches = watched_session(monkeypatch, Prefill(50), max_num_batched_tokens=32)
    session.run(Prefill(50))
    assert [len(batch.token_ids) for batch in batches] == [32, 18]
    assert [len(batch.logits_indices) for batch in batches] == [0, 1]


def test_the_cache_is_full_of_numbers_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = tiny_model(monkeypatch)
    session = Session(model, config, [Decode(4, 50)])
    for layer in session.kv_cache.layers:
        assert (np.abs(layer.k.arrays[0].astype(np.float32)).sum(axis=(2, 3)) > 0).all()
        assert (np.abs(layer.v.arrays[0].astype(np.float32)).sum(axis=(2, 3)) > 0).all()


def test_every_repetition_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Decode(3, depth=20, batch=2)
    session, batches = watched_session(monkeypatch, workload)
    measurement = session.measure(workload, repetitions=2)
    warm_up, first, second = batches[:2], batches[2:5], batches[5:]
    assert len(warm_up) == 2 and len(second) == 3
    for one, other in zip(first, second, strict=True):
        assert one.slot_mapping.tolist() == other.slot_mapping.tolist()
    assert len(measurement.seconds) == 2


def test_the_cache_is_planned_for_the_largest_workload() -> None:
    workloads = [Prefill(33), Decode(8, 60, 3), Decode(1, 0)]
    plan = plan_kv_cache(workloads, EngineConfig(), TINY_SHAPE, NumpyBackend())
    assert plan.num_blocks == 3 * 3 * 2  # two groups: one layer has a window
    assert plan.num_bytes == 9 * 32 * 2 * 2 * 2 * 8 * 2  # bf16 K and V of 2 layers of 2 heads of 8


@pytest.mark.parametrize(
    ("workload", "knobs", "message"),
    [
        (Decode(8, 1017), {}, r"tg8@1017: needs 1025 positions for one request; .* has 1024"),
        (Prefill(65), {"max_model_len": 64}, r"pp65: needs 65 .* the context has 64"),
        (Decode(1, 0, 9), {"max_num_batched_tokens": 8}, r"max_num_batched_tokens=8"),
        (Prefill(33), {"kv_cache_memory": 8191}, r"pp33: needs 0.01 MiB .* kv_cache_memory=8191"),
    ],
)
def test_what_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, knobs: dict[str, int], message: str
) -> None:
    model, _ = tiny_model(monkeypatch)
    config = EngineConfig(backend="numpy", speculation="off", **knobs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        Session(model, config, [workload])
    with pytest.raises(ValueError, match=message):
        random_model("tiny", config, [workload])


# Costs


def test_cost_of_a_decode_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Decode(2, depth=40, batch=3)
    session, _ = watched_session(monkeypatch, workload, kv_cache_dtype="f32")
    cost = session.cost(session.run(workload))
    layer = 64 * 32 + 32 * 32 + 96 * 32 + 32 * 48
    weights = 4 * (2 * layer + 96 * 32)  # f32 on NumPy, each matrix once a step
    # One layer sees everything, the other 16 positions; K and V of 2 heads of 8 numbers of 4 bytes.
    positions = (41 + 16) + (42 + 16)
    assert cost.num_steps == 2
    assert cost.num_bytes == 2 * weights + 3 * positions * 2 * 2 * 8 * 4
    attention = 4 * 4 * 8 * 3 * positions
    assert cost.flops == 2 * 3 * 2 * (2 * layer + 96 * 32) + attention


def test_cost_of_chunks_is_that_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = watched_session(monkeypatch, Prefill(50), max_num_batched_tokens=32)
    cost = session.cost(session.run(Prefill(50)))
    assert cost.num_steps == 2
    assert cost.flops == formulas.forward_flops(TINY_SHAPE, 0, 50, num_logits=1)


@pytest.mark.parametrize(
    ("quantization", "row_bytes"),
    [
        ("int8", 40 + 2 * 2),  # a row of 40 inputs is a whole group of 32 and a short one
        ("int8-channel", 40 + 4),
        ("int4", 20 + 2 * 2),
        ("int4-zp", 20 + 2 * 2 + 2),
        ("int4-g128", 20 + 2),
        ("none", 40 * 4),
    ],
)
def test_weights_count_with_their_scales(quantization: str, row_bytes: int) -> None:
    config = EngineConfig(backend="numpy", quantization=quantization)
    assert planned_matrix_bytes(config, NumpyBackend())(96, 40) == 96 * row_bytes


def test_a_machine_too_small_for_a_shape_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "available_memory", lambda backend: 100_000)
    with pytest.raises(ValueError, match=r"shape='tiny' with quantization='none' takes \d"):
        tiny_model(monkeypatch)


# Statistics


def measurement(*seconds: float) -> Measurement:
    return Measurement(Decode(4, 10, 2), seconds, Cost(4, 1000, 600), "int8")


def test_the_median_counts() -> None:
    assert measurement(1.0, 4.0, 2.0).tokens_per_second == 8 / 2
    assert measurement(1.0, 3.0).tokens_per_second == 8 / 2


def test_spread_is_from_the_slowest_to_the_fastest() -> None:
    assert measurement(1.0, 4.0, 2.0).spread == (8 / 1 - 8 / 4) / (8 / 2)
    assert measurement(2.0).spread == 0


def test_shares_of_what_the_machine_can_do() -> None:
    measured = measurement(2.0)
    assert (measured.bytes_per_step, measured.flops_per_step) == (250, 150)
    assert measured.bandwidth_share(MACHINE) == 1000 / 2 / 1000
    assert measured.peak_share(MACHINE) == 600 / 2 / 800
    assert replace(measured, arithmetic="bf16").peak_share(MACHINE) == 600 / 2 / 400
    assert replace(measured, arithmetic="f32").peak_share(MACHINE) == 600 / 2 / 200
