"""The plan of an engine, byte by byte: rows of logits, states, open keys, what waits for the disk, drafts, stages."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from pellucid.execution.state_pieces import num_pieces
from pellucid.facts.kv_groups import block_needs
from pellucid.facts.model_config import LayerConfig, ModelConfig, ShortConvolutionConfig
from pellucid.inputs.config import EngineConfig
from pellucid.memory import engine_plan
from pellucid.memory.engine_plan import (
    EngineModels,
    ModelNeeds,
    StateSlots,
    longest_model_len,
    max_model_len,
    plan_engine,
)
from pellucid.memory.memory_plan import StageNeeds
from pellucid.scheduling.open_keys import OpenSlots
from support.fake_model import FakeBackend
from support.tiny_shape import TINY_SHAPE

BLOCK_BYTES = {"bf16": 200, "int8": 100, "int8,int4": 80, "int4": 60}
ROW = 96 * 4  # bytes of a row of logits
STATE = 4 * 2 * 32  # bytes of what a convolution over 3 rows of 32 channels keeps
# Layers, groups of keys before they are codes, bf16, positions, heads, a head of 8 padded to 32.
OPEN_KEYS = 2 * 2 * 2 * 32 * 2 * 32
AREA = 7
RECURRENT = replace(
    TINY_SHAPE,
    layers=(
        TINY_SHAPE.layers[0],
        LayerConfig(None, TINY_SHAPE.layers[0].mlp, recurrence=ShortConvolutionConfig(32, 3)),
    ),
)


class PlannedBackend(FakeBackend):
    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        return BLOCK_BYTES[dtype]

    def open_area_bytes(self, config: ModelConfig, dtype: str) -> int:
        return AREA * (dtype == "int4")


def needs(config: ModelConfig = TINY_SHAPE, weights: int = 5000) -> ModelNeeds:
    return ModelNeeds(config, PlannedBackend(), weights, scratch_bytes=1000)


def engine_config(**knobs: object) -> EngineConfig:
    return EngineConfig(**{"max_num_seqs": 3, "max_num_batched_tokens": 64, **knobs})


def plan(models: EngineModels, available: int | None = None, **knobs: object):
    return plan_engine(engine_config(**knobs), models, available)


def test_a_plain_model(tmp_path) -> None:
    made = plan(EngineModels(needs()))
    assert (made.memory.weights, made.memory.states) == (5000, 0)
    assert made.memory.scratch == 1000 + 64 * ROW  # each row is of a token
    assert made.max_extra_logits == 64  # as many as a step has tokens
    assert made.max_pending_blocks == 2 * (2 + 3)  # in both groups what a step fills, one more each
    assert (made.cache.state_slots, made.cache.open_slots, made.cache.num_states) == (None, None, 1)
    assert made.draft_cache is None and made.of_machines() == {}
    stored = plan(EngineModels(needs()), prefix_store=str(tmp_path))
    assert stored.memory.scratch - made.memory.scratch == 2 * 10 * 200
    short = plan(EngineModels(needs()), max_model_len=5)
    assert short.memory.scratch == 1000 + 3 * 5 * ROW
    per_request = made.memory.block_needs.most(100)
    small = plan(EngineModels(needs()), max_model_len=100, num_kv_blocks=2 * per_request + 1)
    assert (made.num_requests(100), small.num_requests(100)) == (3, 2)
    assert small.memory.num_tokens == per_request * 32  # half of the blocks in each of two groups


def test_open_keys_have_slots_and_an_area() -> None:
    made = plan(EngineModels(needs()), kv_cache_dtype="int4")
    assert made.cache.open_slots == OpenSlots(4, 32)  # one more, for a look
    assert made.cache.num_states == 4
    assert made.memory.states == 4 * OPEN_KEYS
    assert made.memory.scratch == 1000 + 64 * ROW + AREA


@pytest.mark.parametrize(
    ("knobs", "has_drafts", "slots"),
    [
        ({}, False, (3, 3, 0)),
        ({}, True, (3, 3, 3)),
        ({"max_num_seqs": 9}, True, (9, 5, 4)),  # what the limits hold
        ({"enable_prefix_caching": False}, True, (3, 0, 3)),
        ({"use_kv_cache": False, "enable_prefix_caching": False}, True, (3, 0, 0)),
    ],
)
def test_recurrent_states_have_slots(
    knobs: dict[str, object],
    has_drafts: bool,
    slots: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_plan, "MAX_SNAPSHOT_BYTES", 6 * STATE - 1)
    monkeypatch.setattr(engine_plan, "MAX_SPARE_BYTES", 4 * STATE)
    made = plan(EngineModels(needs(RECURRENT), has_drafts=has_drafts), **knobs)
    assert made.cache.state_slots == StateSlots(*slots)
    assert made.memory.states == sum(slots) * STATE
    assert made.cache.num_states == sum(slots)
    most = 2 + slots[0] + 2 * 2  # one group; two states of two blocks each may wait
    assert made.max_pending_blocks == most
    in_three = plan(EngineModels(needs(RECURRENT)), kv_cache_dtype="int8", **knobs)
    assert in_three.max_pending_blocks == most + 2
    pool = made.cache.state_pool()
    assert pool is not None and pool.num_snapshots == slots[1]
    with_keys = plan(EngineModels(needs(RECURRENT)), kv_cache_dtype="int4")
    assert with_keys.cache.open_slots is None  # they are in the slots of states
    num_slots = sum(with_keys.cache.state_slots or ())
    assert with_keys.memory.states == num_slots * (STATE + OPEN_KEYS // 2)  # of one layer


def test_states_wait_in_pieces_of_the_size_of_a_block() -> None:
    assert [num_pieces(num_bytes, 200) for num_bytes in (0, 1, 200, 201)] == [1, 1, 1, 2]


def test_at_least_one_snapshot_and_one_spare_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_plan, "MAX_SNAPSHOT_BYTES", STATE - 1)
    monkeypatch.setattr(engine_plan, "MAX_SPARE_BYTES", STATE - 1)
    monkeypatch.setattr(engine_plan, "MAX_EXTRA_LOGITS_BYTES", ROW - 1)
    made = plan(EngineModels(needs(RECURRENT), needs(RECURRENT), has_drafts=True))
    assert made.cache.state_slots == StateSlots(3, 1, 1)
    assert made.draft_cache is not None and made.draft_cache.state_slots == StateSlots(1, 0, 1)
    assert made.max_extra_logits == 1


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
@pytest.mark.parametrize("drafts_have_windows", [False, True])
def test_a_draft_model_has_blocks_for_as_many_texts_of_any_length(
    drafts_have_windows: bool, dtype: str
) -> None:
    one_group = replace(TINY_SHAPE, layers=TINY_SHAPE.layers[:1])
    pair = (one_group, TINY_SHAPE) if drafts_have_windows else (TINY_SHAPE, one_group)
    knobs, block_bytes = {"num_kv_blocks": 100, "kv_cache_dtype": dtype}, BLOCK_BYTES[dtype]
    models = EngineModels(needs(pair[0]), needs(pair[1], weights=300))
    alone, made = plan(EngineModels(needs(pair[0])), **knobs), plan(models, **knobs)
    own, drafts = (block_needs(each, 32, 64) for each in pair)
    ratio = max(Fraction(drafts.most(n), own.most(n)) for n in range(1, 1025))
    assert made.draft_cache is not None
    assert made.draft_cache.num_blocks == ceil(100 * ratio)
    assert made.memory.weights == 5300
    assert made.memory.bytes_per_block == block_bytes
    more = 1000 + 3 * ROW  # of the draft model
    if dtype == "int4":
        more += 4 * OPEN_KEYS // 2 * pair[1].num_layers + AREA
    of_drafts = made.draft_cache.num_blocks * block_bytes
    assert made.memory.scratch - alone.memory.scratch == more + of_drafts
    fixed = alone.memory.scratch + alone.memory.states + more
    left = 50 * 2 * block_bytes
    limited = plan(models, fixed + left, memory_utilization=1, kv_cache_dtype=dtype)
    assert limited.memory.num_blocks == left // (block_bytes + ceil(block_bytes * ratio))


def test_a_draft_model_with_states_and_open_keys() -> None:
    plain = EngineModels(needs(), needs())
    states = EngineModels(needs(), needs(RECURRENT))
    for knobs, state_bytes in (({}, STATE), ({"kv_cache_dtype": "int4"}, STATE + OPEN_KEYS // 2)):
        made, other = (plan(each, num_kv_blocks=100, **knobs) for each in (states, plain))
        assert made.draft_cache is not None and other.draft_cache is not None
        assert made.draft_cache.state_slots == StateSlots(3, 0, 3)
        fewer = other.draft_cache.num_blocks - made.draft_cache.num_blocks
        open_keys = 4 * OPEN_KEYS if knobs else 0
        difference = made.memory.scratch + fewer * made.memory.bytes_per_block
        assert difference - other.memory.scratch == 6 * state_bytes - open_keys


def test_the_longest_text_that_fits() -> None:
    models = EngineModels(needs())
    assert max_model_len(engine_config(), TINY_SHAPE) == 1024
    assert max_model_len(engine_config(max_model_len=1024), TINY_SHAPE) == 1024
    with pytest.raises(ValueError, match="max_model_len=1025: the model's own limit is 1024 token"):
        max_model_len(engine_config(max_model_len=1025), TINY_SHAPE)
    assert longest_model_len(engine_config(), models, 1 << 30) == 1024
    for available in (33_000, 35_000):
        longest = longest_model_len(engine_config(), models, available)
        assert 0 < longest < 1024
        plan(models, available, max_model_len=longest)
        with pytest.raises(ValueError, match=f" is {longest} tokens: max_model_len={longest}"):
            plan(models, available, max_model_len=longest + 1)


STAGES = (
    StageNeeds("stage a", 20_000, weights=1000, scratch=300, bytes_per_block=50, bytes_per_state=0),
    StageNeeds("stage b", 9_000, weights=2000, scratch=200, bytes_per_block=80, bytes_per_state=64),
)


def test_a_model_in_stages_has_the_blocks_that_fit_everywhere() -> None:
    model = replace(needs(RECURRENT), elsewhere=STAGES, own_bytes_per_block=70)
    available, slots = 20_000 + 9_000 + 60_000, 6
    made = plan(EngineModels(model), available)
    assert made.memory.bytes_per_block == 50 + 80 + 70
    assert made.memory.num_blocks == (8_100 - 200 - slots * 64) // 80
    assert made.memory.decided_by.startswith("memory of stage b (")
    machines = made.of_machines()
    assert list(machines) == ["stage a", "stage b", "this machine"]
    sizes = [
        (it.weights, it.scratch, it.bytes_per_block, it.states, it.available)
        for it in machines.values()
    ]
    scratch = 1000 + 64 * ROW
    assert sizes == [
        (1000, 300, 50, 0, 20_000),
        (2000, 200, 80, slots * 64, 9_000),
        (2000, scratch - 500, 70, slots * (STATE - 64), 60_000),
    ]
    assert {it.num_blocks for it in machines.values()} == {made.memory.num_blocks}
    unknown = plan(EngineModels(replace(model, elsewhere=(replace(STAGES[0], available=None),))))
    assert [it.available for it in unknown.of_machines().values()] == [None, None]
    short = (STAGES[0], replace(STAGES[1], available=3_000))
    # Formats of the cache are those of all machines: none is suggested for what one of them lacks.
    with pytest.raises(ValueError, match=r"memory of stage b .* tokens: max_model_len=\d+ would f"):
        plan(EngineModels(replace(model, elsewhere=short)), 83_000)
