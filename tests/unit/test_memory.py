import pytest

from pellucid.config import EngineConfig
from pellucid.memory.memory_plan import MemoryNeeds, plan_memory

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
    with pytest.raises(ValueError, match=r"^num_kv_blocks=2147483648: .*20\.00 GiB.* 2\.00 GiB"):
        plan(available, num_kv_blocks=1 << 31)
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
    assert made.knob == "what is left of 500 bytes available"


def test_the_default_is_no_more_than_the_requests_of_a_step_can_use() -> None:
    for available in (None, 10**6):
        made = plan(available=available)
        assert (made.num_blocks, made.num_contexts) == (40, 4)
        assert made.knob == "max_num_seqs, max_model_len"


def test_a_pool_too_small_for_one_context_names_the_knob() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_memory=95 gives 9 .* at least 100"):
        plan(kv_cache_memory=95)
    with pytest.raises(ValueError, match="num_kv_blocks=1 gives 1"):
        plan(num_kv_blocks=1)
    with pytest.raises(
        ValueError, match=r"left of 50 bytes available gives 0 .* max_model_len=320"
    ):
        plan(available=50)
