"""KV groups: how layers are grouped, which blocks behind windows are freed, and what the formulas say of it."""

from dataclasses import replace

import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.formulas import BlockNeeds, first_seen
from pellucid.facts.kv_groups import kv_groups, kv_places
from pellucid.facts.model_config import ModelConfig
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.prefix_index import MissReason
from pellucid.scheduling.request import Request
from support.block_moves import WIDE_AND_NARROW, check_layers_of_several_shapes, model_of_kinds
from support.scheduling import BLOCK_SIZE, make_request
from support.tiny_shape import TINY_SHAPE

WINDOWS = (None, 6)


def sizes(config: ModelConfig) -> list[tuple[int | None, int]]:
    return [(group.window, len(group.layers)) for group in kv_groups(config)]


def test_a_model_with_one_kind_of_layers_has_one_group() -> None:
    assert sizes(model_of_kinds((None, 8), (None, 8), (None, 8))) == [(None, 3)]
    assert sizes(model_of_kinds((16, 8), (16, 8))) == [(16, 2)]
    # A window as long as the context hides nothing.
    assert sizes(model_of_kinds((None, 8), (TINY_SHAPE.context_length, 8))) == [(None, 2)]


def test_groups_of_known_models() -> None:
    full, local = (None, 8), (512, 8)
    gpt_oss = model_of_kinds(*[local, full] * 12)
    assert sizes(gpt_oss) == [(None, 12), (512, 12)]
    gemma3_1b = model_of_kinds(*([local] * 5 + [full]) * 4, local, local)
    assert sizes(gemma3_1b) == [(None, 4)] + [(512, 4)] * 5 + [(512, 2)]
    olmo3_7b = model_of_kinds(*([local] * 3 + [full]) * 8)
    assert sizes(olmo3_7b) == [(None, 8)] + [(512, 8)] * 3


def test_a_wide_layer_takes_the_place_of_two() -> None:
    config = WIDE_AND_NARROW
    assert sizes(config) == [(None, 3), (16, 6), (16, 6)]
    backend = NumpyBackend()
    bytes_per_block = 32 * 2 * 2 * (3 * 16) * 4  # tokens, K and V, heads, three wide layers, f32
    assert backend.kv_bytes_per_block(config, 32, "f32") == bytes_per_block


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
def test_layers_of_a_group_do_not_touch_each_other(dtype: str) -> None:
    check_layers_of_several_shapes(NumpyBackend(), dtype)


def test_layers_that_share_keys_and_values_keep_what_the_widest_sees() -> None:
    config = model_of_kinds((16, 8), (16, 8), (32, 8))
    shared = replace(config.layers[2].attention, shared_kv_layer=0)
    config = replace(
        config, layers=(*config.layers[:2], replace(config.layers[2], attention=shared))
    )
    groups = kv_groups(config)
    assert [(group.window, group.layers) for group in groups] == [(32, (0,)), (16, (1,))]
    places = kv_places(config, groups)
    assert places[2] == places[0]


# ---- formulas


@pytest.mark.parametrize("window", [None, 1, 5, 17, 40])
@pytest.mark.parametrize("max_chunk", [1, 7, 64])
def test_the_most_blocks_are_those_of_the_worst_chunk(window: int | None, max_chunk: int) -> None:
    needs = BlockNeeds(4, (window,), max_chunk)
    for num_tokens in range(1, 150, 4):
        held = [
            needs.held(start, min(num_tokens, start + chunk))
            for start in range(num_tokens)
            for chunk in {1, max_chunk}
        ]
        assert max(held) <= needs.most(num_tokens)
    if window is None or window + max_chunk < 60:
        assert max(held) == needs.most(num_tokens)  # some chunk of a long text needs all of them
    assert needs.longest(needs.most(100), 500) == max(
        n for n in range(501) if needs.most(n) <= needs.most(100)
    )


# ---- the manager


def make_manager(num_blocks: int, windows=WINDOWS, max_chunk: int = 8, **knobs) -> KVCacheManager:
    return KVCacheManager(
        BlockPool(num_blocks), BLOCK_SIZE, windows=windows, max_chunk=max_chunk, **knobs
    )


def advance(manager: KVCacheManager, request: Request, num_tokens: int) -> bool:
    """Steps of at most `max_chunk` tokens; False when blocks lack."""
    while (start := request.num_computed_tokens) < num_tokens:
        end = min(num_tokens, start + manager.needs.max_chunk)
        if not manager.allocate(request, num_tokens):
            return False
        request.num_computed_tokens = end
        manager.seal(request, start)
        manager.free_out_of_window(request)
        manager.check_integrity()
    return True


def test_a_request_holds_the_blocks_that_the_formula_says() -> None:
    manager, request = make_manager(100), make_request("a", 200)
    for end in range(1, 100):
        assert advance(manager, request, end)
        held = manager.needs.held(end, end)
        assert manager.num_blocks(request) == held
        first = first_seen(end, 6) // BLOCK_SIZE
        full, local = manager.block_tables(request)
        assert -1 not in full and local[:first] == (-1,) * first and -1 not in local[first:]


def test_capacity_equals_the_formula() -> None:
    """As many requests decode together as the formula says, and the longest that is said to fit does."""
    needs = BlockNeeds(BLOCK_SIZE, WINDOWS, 8)
    num_tokens = 61
    for num_blocks in (needs.most(num_tokens), 3 * needs.most(num_tokens), 100):
        manager = make_manager(num_blocks)
        # One after the other, so that only the last one holds the blocks of a chunk.
        num_fitting = 0
        while advance(manager, make_request(f"{num_fitting}", num_tokens), num_tokens):
            num_fitting += 1
        at_end, peak = needs.held(num_tokens, num_tokens), needs.most(num_tokens)
        assert num_fitting == 1 + (num_blocks - peak) // at_end
        longest = needs.longest(num_blocks, 10_000)
        assert manager.fits_alone(longest) and not manager.fits_alone(longest + 1)
        alone = make_manager(num_blocks)
        assert advance(alone, make_request("longest", longest), longest)


def test_a_hit_needs_the_blocks_inside_the_window_alone() -> None:
    manager = make_manager(100)
    first = make_request("first", 60)
    advance(manager, first, 60)
    freed = [each for each in manager.block_pool.blocks_in_use() if not each.ref_count]
    assert len(freed) == 10 and {each.key and each.key.group for each in freed} == {1}
    for block in freed:  # as if others had needed them
        manager.block_pool.unseal(block)
    second = make_request("second", 60)
    assert manager.hold(manager.plan_admission(second)) == 56
    full, local = manager.block_tables(second)
    assert full == manager.block_tables(first)[0][:14]
    assert local[10:] == manager.block_tables(first)[1][10:14] and set(local[:10]) == {-1}


def test_a_hit_is_admitted_with_the_blocks_for_what_follows() -> None:
    """Blocks of its prefix that are behind the window are none that it can use again."""
    manager = make_manager(100)
    advance(manager, make_request("first", 60), 60)
    again, num_free = make_request("again", 120), manager.block_pool.num_free_blocks
    plan = manager.plan_admission(again)
    again.num_computed_tokens = manager.hold(plan)
    manager.admit(plan)
    assert advance(manager, again, again.num_computed_tokens + manager.needs.max_chunk)
    assert num_free - manager.block_pool.num_free_blocks <= plan.num_needed


def test_a_hit_is_the_deepest_point_that_all_groups_have() -> None:
    manager = make_manager(100)
    first = make_request("first", 60)
    advance(manager, first, 60)
    for table in manager._tables["first"].by_group[1:]:
        manager.block_pool.unseal(table.blocks[12])  # no token behind it can go on ...
        manager.block_pool.unseal(manager.block_pool.index.find(table.key(5)))
    again = make_request("again", 60)
    # ... but the one after block 11 can, though block 5 of the window's group is not there.
    plan = manager.plan_admission(again)
    again.num_computed_tokens = manager.hold(plan)
    assert again.num_computed_tokens == 48
    match = manager.admit(plan)
    assert match.num_tokens == 48
    assert match.miss is not None
    assert (match.miss.reason, match.miss.at_token) == (MissReason.EVICTED, 48)


def test_a_request_that_cannot_go_on_gives_all_blocks_back() -> None:
    manager, request = make_manager(100), make_request("a", 60)
    advance(manager, request, 22)
    assert manager.release_tail(request, 1) == 2  # one of each group; the rest is of use
    assert manager.num_positions(request) == 20
    request.num_computed_tokens = 20
    advance(manager, request, 49)
    assert manager.release_tail(request, 3) == manager.needs.held(49, 49)
    assert manager.num_positions(request) == 0
    request.num_computed_tokens = 0
    manager.check_integrity()


def test_block_tables_are_made_again_only_after_a_change() -> None:
    """A decode asks for them at every step; most steps end within a block."""
    manager, request = make_manager(100), make_request("r", 60)
    for end in (40, 41):
        advance(manager, request, end)
    manager.free_out_of_window(request)
    tables, version = manager.block_tables(request), manager.block_pool.version
    request.num_computed_tokens = 42
    manager.free_out_of_window(request)
    assert all(a is b for a, b in zip(manager.block_tables(request), tables, strict=True))
    assert manager.block_pool.version == version


def test_a_fork_shares_only_what_it_can_go_on_from() -> None:
    manager, parent = make_manager(100), make_request("parent", 60)
    advance(manager, parent, 40)
    assert manager.num_forkable(parent, 40) == 40
    assert manager.num_forkable(parent, 33) == 33  # the same tile
    assert manager.num_forkable(parent, 20) == 0
    assert manager.num_forkable(parent, 0) == 0
    child = make_request("child", 60)
    manager.fork(parent, child, 33)
    child.num_computed_tokens = 33
    manager.check_integrity()
    assert advance(manager, child, 40)


def test_no_salt_gives_one_group_the_blocks_of_another() -> None:
    manager = make_manager(100, windows=(None, 6, 6))
    request = make_request("a", 9)
    advance(manager, request, 9)
    hashes = [table.key(0).block_hash for table in manager._tables["a"].by_group]
    assert len(set(hashes)) == 3
