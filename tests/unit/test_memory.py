"""The memory plan: the size of each part, and settings that do not fit."""

from dataclasses import replace

import pytest

from pellucid.inputs.config import EngineConfig
from pellucid.memory.memory_plan import MemoryNeeds, Room, plan_memory

NEEDS = MemoryNeeds(weights=1000, scratch=100, bytes_per_block=10)
CONTEXT = 320  # tokens: 10 blocks of 32


def plan(available: int | None = None, **knobs: object):
    return plan_memory(EngineConfig(max_num_seqs=4, **knobs), NEEDS, CONTEXT, available)


def test_the_users_blocks_win_over_the_users_bytes() -> None:
    assert plan(num_kv_blocks=13, kv_cache_memory=1).num_blocks == 13
    assert plan(kv_cache_memory=239).num_blocks == 23
    assert plan(available=330, kv_cache_memory=239).num_blocks == 23  # no margin is kept then


def test_a_cache_that_memory_cannot_hold_is_refused() -> None:
    available = 2 << 30
    with pytest.raises(ValueError, match=r"20\.00 GiB, but 2\.00 GiB.*: num_kv_blocks=214748354 "):
        plan(available, num_kv_blocks=1 << 31)
    assert plan(available, num_kv_blocks=214748354).num_blocks == 214748354
    with pytest.raises(ValueError, match=r"^kv_cache_memory=1152921504606846976: "):
        plan(available, kv_cache_memory=1 << 60)


def test_memory_utilization_is_the_share_that_the_engine_may_use() -> None:
    assert plan(available=500, memory_utilization=0.5).num_blocks == (500 - 100 - 250) // 10
    assert plan(available=500, memory_utilization=1).num_blocks == 40


def test_the_default_is_what_is_left_after_scratch_and_a_margin() -> None:
    made = plan(available=500)
    assert made.margin == 50
    assert made.num_blocks == (500 - 100 - 50) // 10
    assert made.scratch + made.margin + made.kv_cache <= 500
    assert (made.num_tokens, made.num_contexts) == (35 * 32, 3)
    assert made.decided_by == "memory (0.00 MiB available, 0.00 MiB left for the KV cache)"


def test_the_default_is_no_more_than_the_requests_of_a_step_can_use() -> None:
    for available in (None, 10**6):
        made = plan(available=available)
        assert (made.num_blocks, made.num_contexts) == (40, 4)
        assert made.decided_by == "max_num_seqs, max_model_len"


GIB = 1 << 30
# A model of 8 B parameters: 128 KiB per token and a context of 131,072.
LARGE = MemoryNeeds(5 * GIB, GIB, 32 << 17, {"int8": 17 << 17, "int4": 9 << 17})


@pytest.mark.parametrize(
    ("available", "knobs", "reason", "settings"),
    [
        (
            8 * GIB,
            {},
            "memory (8.00 GiB available, 6.20 GiB left for the KV cache) gives 6.20 GiB",
            [{"max_model_len": 50784}, {"kv_cache_dtype": "int4"}],
        ),
        (
            16 * GIB,
            {"kv_cache_memory": 9 * GIB},
            f"kv_cache_memory={9 * GIB} gives 9.00 GiB",
            [{"max_model_len": 73728}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "int4"}],
        ),
        (
            32 * GIB,
            {"num_kv_blocks": 100},
            "num_kv_blocks=100 gives 400.00 MiB, which is 3200 tokens".replace(
                "400.00 MiB", "0.39 GiB"
            ),
            [{"max_model_len": 3200}, {"num_kv_blocks": 4096}],
        ),
        (GIB, {}, "which is 0 tokens: only a smaller model would fit", []),
    ],
)
def test_a_context_that_does_not_fit_says_what_would(
    available: int, knobs: dict[str, int], reason: str, settings: list[dict[str, object]]
) -> None:
    context = 131_072
    with pytest.raises(ValueError, match=r"one sequence takes 16\.00 GiB of KV cache") as error:
        plan_memory(EngineConfig(**knobs), LARGE, context, available)
    assert reason in str(error.value)
    for setting in settings:
        [(name, value)] = setting.items()
        assert f"{name}={value!r}" in str(error.value)
        needs = LARGE
        if name == "kv_cache_dtype":
            needs = replace(LARGE, bytes_per_block=LARGE.other_bytes_per_block[value])
        config = EngineConfig(**(knobs | setting))
        plan_memory(config, needs, setting.get("max_model_len", context), available)
    assert str(error.value).count("=") == reason.count("=") + len(settings) + 1


@pytest.mark.parametrize(("available", "own"), [(300, 200), (None, None)])
def test_this_machine_has_what_others_have_not(available: int | None, own: int | None) -> None:
    other = Room(" of stage 2", available=100, fixed=20, bytes_per_block=10)
    needs = MemoryNeeds(weights=0, scratch=40, bytes_per_block=30, states=10, elsewhere=(other,))
    assert needs.rooms(available) == [other, Room(" of this machine", own, 30, 20)]
