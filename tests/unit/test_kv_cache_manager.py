"""KVCacheManager without a scheduler: block tables, copies and contents. A block holds four tokens."""

from itertools import takewhile
from typing import Any

import pytest

from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.block_ops import Copy, Load, Read, Save, Slot, SlotKind
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.offload import BrokenPlanError, Offload
from pellucid.scheduling.prefix_finder import Loaded, Swapped
from pellucid.scheduling.prefix_index import MissReason, PrefixMatch, PrefixMiss
from pellucid.scheduling.request import Request
from support.scheduling import BLOCK_SIZE, make_request


def make_manager(num_blocks: int = 16, **knobs: object) -> KVCacheManager:
    return KVCacheManager(BlockPool(num_blocks), BLOCK_SIZE, **knobs)


def compute(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    """What a step does to a request's blocks."""
    assert manager.allocate(request, num_tokens)
    before, request.num_computed_tokens = request.num_computed_tokens, num_tokens
    manager.seal(request, before)
    manager.check_integrity()


def begin(manager: KVCacheManager, request: Request) -> PrefixMatch:
    """What admission does."""
    plan = manager.plan_admission(request)
    assert plan.num_missing == 0
    request.num_computed_tokens = manager.hold(plan)
    assert manager.num_missing_blocks(request, request.num_tokens) == 0
    match = manager.admit(plan)
    request.num_computed_tokens = match.num_tokens
    manager.check_integrity()
    return match


def end(manager: KVCacheManager, *requests: Request) -> None:
    for request in requests:
        manager.forget(request)
    manager.check_integrity()


def read(
    manager: KVCacheManager, request: Request, *there: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Has a request read blocks of a prefix store that holds `there`. The tokens that it asked for."""
    manager.take_block_ops()
    if not manager.start_reading(request):
        return []
    (op,) = manager.take_block_ops()
    assert isinstance(op, Read)
    asked = [each.key.token_ids for each in op.keys]
    found = [f"payload of {token_ids}" for token_ids in takewhile(there.__contains__, asked)]
    assert manager.offload.reads.finish_reading(op.read_id, found) == request.request_id
    assert not manager.start_reading(request)  # once is enough
    manager.check_integrity()
    return asked


def test_a_copy_needs_a_block_too() -> None:
    manager = make_manager(num_blocks=2)
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 6)
    manager.fork(parent, child)
    child.num_computed_tokens = 6
    assert manager.num_missing_blocks(child, 7) == 1
    assert not manager.allocate(child, 7)
    plan = manager.plan_admission(make_request("other", 20))
    assert manager.num_reclaimable(plan, parent) == 0
    end(manager, parent)
    assert manager.allocate(child, 7)  # it is alone now, and writes in place
    assert manager.take_block_ops() == ()


def test_a_block_that_is_rolled_back_into_can_no_longer_be_found() -> None:
    manager = make_manager()
    request = make_request("a", 12)
    compute(manager, request, 9)
    assert manager.rewind(request, 6) == 6
    request.num_computed_tokens = 6
    assert manager.block_tables(request)[0] == (0, 1)
    assert begin(manager, make_request("b", 12)).num_tokens == 8
    compute(manager, request, 7)  # its second block is shared now: it gets a copy
    assert manager.take_block_ops() == (Copy(Slot(SlotKind.BLOCK, 1), Slot(SlotKind.BLOCK, 3)),)
    other = make_request("c", 12, cache_salt=CacheSalt("own"))
    compute(manager, other, 9)
    assert manager.rewind(other, 6) == 6
    other.num_computed_tokens = 6
    compute(manager, other, 7)  # nobody else has it: it is written in place, and not found
    assert manager.take_block_ops() == ()
    assert begin(manager, make_request("d", 12, cache_salt=CacheSalt("own"))).num_tokens == 4


def test_shared_blocks_do_not_count_as_given_back() -> None:
    manager = make_manager()
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 12)
    manager.fork(parent, child)
    child.num_computed_tokens = 12
    compute(manager, child, 16)
    assert manager.release_tail(child, 2) == 1
    child.num_computed_tokens = 0
    assert manager.num_blocks(child) == 0
    manager.check_integrity()


def test_a_group_is_reassigned_all_at_once() -> None:
    manager = make_manager()
    requests = [make_request(name, 20) for name in "abc"]
    for request in requests:
        compute(manager, request, 6)
    a, b, _ = (manager.block_tables(request)[0] for request in requests)
    manager.reassign(requests, [1, 0, 0])
    assert [manager.block_tables(request)[0] for request in requests] == [b, a, a]
    manager.check_integrity()
    assert manager.block_pool.num_free_blocks == 16 - len({*a, *b})


def test_what_the_pool_lost_comes_from_the_store_and_the_rest_from_the_pool() -> None:
    manager = make_manager(offload=Offload(max_read_blocks=5))
    first = make_request("first", 20)
    compute(manager, first, 18)
    assert [op.token_ids[0] for op in manager.take_block_ops() if isinstance(op, Save)] == [
        0,
        4,
        8,
        12,
    ]
    # The two first blocks are lost, as if others had needed them.
    for block in manager._tables["first"].by_group[0].blocks[:2]:
        manager.block_pool.unseal(block)
    again = make_request("again", 20)
    there = [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert read(manager, again, *there) == there
    match = begin(manager, again)
    assert (match.num_tokens, match.num_loaded_tokens) == (16, 8)
    ids = manager.block_tables(again)[0]
    assert manager.take_block_ops() == (
        Load(Slot(SlotKind.BLOCK, ids[0]), "payload of (0, 1, 2, 3)"),
        Load(Slot(SlotKind.BLOCK, ids[1]), "payload of (4, 5, 6, 7)"),
    )
    assert ids[2:4] == manager.block_tables(first)[0][2:4]
    compute(manager, again, 20)
    # What was loaded is not saved again, and can be found in the pool.
    assert [type(op) for op in manager.take_block_ops()] == [Save]
    assert begin(manager, make_request("third", 20)).num_loaded_tokens == 0


def test_blocks_that_leave_the_window_make_room_for_those_of_the_store() -> None:
    """A prompt is admitted with two blocks of each group, and twelve are left. To go on behind seven blocks it takes
    fourteen: the two of the group with a window, which no token sees then, make room.
    """
    manager = make_manager(num_blocks=16, offload=Offload(max_read_blocks=10), windows=(None, 8))
    first = make_request("first", 33)
    for num_tokens in range(1, 9):
        compute(manager, first, num_tokens)
    end(manager, first)
    again = make_request("again", 40)
    read(manager, again, *((n, n + 1, n + 2, n + 3) for n in range(0, 28, 4)))
    match = begin(manager, again)
    assert (match.num_tokens, match.num_loaded_tokens) == (28, 20)


def test_the_store_is_asked_for_full_blocks_before_the_last_token_only() -> None:
    manager = make_manager(offload=Offload(max_read_blocks=5))
    assert read(manager, make_request("a", 8)) == [(0, 1, 2, 3)]
    assert read(manager, make_request("b", 3)) == []
    assert read(manager, make_request("c", 8, prompt_logprobs=0)) == []
    manager = make_manager()
    assert read(manager, make_request("d", 8)) == []


def test_blocks_on_their_way_from_the_store_are_bounded() -> None:
    manager = make_manager(offload=Offload(max_read_blocks=3))
    first, second, urgent = (
        make_request(name, prompt=range(i, i + 9)) for i, name in enumerate("abc")
    )
    assert manager.start_reading(first)
    assert manager.start_reading(second)
    ops = manager.take_block_ops()
    assert [len(op.keys) for op in ops] == [2, 1]
    assert manager.start_reading(urgent)  # it waits, though it could not ask
    assert manager.take_block_ops() == ()
    assert manager.offload.reads.finish_reading(ops[0].read_id, ["payload"]) == "a"
    assert manager.offload.reads.num_readable_blocks == 1
    manager.forget(second)
    assert manager.offload.reads.finish_reading(ops[1].read_id, ["nobody's"]) is None
    manager.check_integrity()
    # Whoever comes first may drop what others have read: they ask again.
    assert manager.start_reading(second)
    assert manager.start_reading(urgent)
    manager.offload.reads.drop_reads_that_wait()
    assert manager.start_reading(first)
    manager.check_integrity()


def test_what_was_read_is_dropped_with_its_request() -> None:
    manager = make_manager(offload=Offload(max_read_blocks=3))
    request = make_request("a", 9)
    read(manager, request, (0, 1, 2, 3), (4, 5, 6, 7))
    assert manager.offload.reads.num_readable_blocks == 1
    end(manager, request)
    assert manager.offload.reads.num_readable_blocks == 3


def test_wasted_slots_are_those_of_the_last_blocks() -> None:
    manager = make_manager()
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 6)
    assert manager.num_wasted_slots() == 2
    manager.fork(parent, child)
    child.num_computed_tokens = 6
    assert manager.num_wasted_slots() == 2  # one block, though two have it
    compute(manager, child, 7)
    assert manager.num_wasted_slots() == 2 + 1


# ---- plans


def lose(manager: KVCacheManager, request: Request) -> None:
    """Others need the blocks of a request, without their contents."""
    for block in manager._tables[request.request_id].by_group[0].blocks:
        manager.block_pool.unseal(block)


def test_a_plan_says_where_blocks_are_and_takes_none() -> None:
    manager = make_manager(num_blocks=6, offload=Offload(num_swap_slots=8, max_read_blocks=5))
    first = make_request("first", 20)
    compute(manager, first, 8)
    again = make_request("again", 20)
    plan = manager.plan_admission(again)
    sealed = manager._tables["first"].by_group[0].blocks
    assert (plan.prefix.num_tokens, plan.prefix.sealed) == (8, [sealed])
    assert plan.prefix.restored is None
    assert (plan.num_needed, plan.num_missing) == (3, 0)  # the blocks of `first` have an owner
    assert manager.num_reclaimable(plan, first) == 0
    assert manager.num_blocks(again) == 0 and manager.block_pool.num_free_blocks == 4

    assert manager.hold(plan) == 8
    again.num_computed_tokens = 8
    assert manager.admit(plan).num_tokens == 8
    compute(manager, again, 19)
    compute(manager, first, 12)
    plan = manager.plan_admission(make_request("third", prompt=range(100, 120)))
    assert (plan.num_needed, plan.num_missing) == (5, 5)
    assert manager.num_reclaimable(plan, again) == 3


def test_a_plan_goes_on_with_what_was_swapped_out_and_read() -> None:
    manager = make_manager(num_blocks=6, offload=Offload(num_swap_slots=1, max_read_blocks=5))
    request = make_request("a", 20)
    compute(manager, request, 16)
    lose(manager, request)
    assert manager.release_tail(request, 4) == 4  # the last block finds a slot
    request.num_computed_tokens = 0
    read(manager, request, (0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    prefix = manager.plan_admission(request).prefix
    assert (prefix.num_tokens, prefix.sealed) == (0, [[]])
    keys = [manager._tables["a"].first.key(index) for index in range(3)]
    assert prefix.restored is not None and prefix.restored.num_tokens == 16
    assert prefix.restored.blocks == [[*(Loaded(key.block_hash) for key in keys), Swapped((0, 3))]]
    assert begin(manager, request).num_tokens == 16


def test_a_plan_that_is_no_longer_true_is_refused() -> None:
    manager = make_manager(num_blocks=6)
    first, request = make_request("first", 20), make_request("a", 20)
    compute(manager, first, 12)
    plan = manager.plan_admission(request)
    compute(manager, first, 16)
    with pytest.raises(BrokenPlanError, match="index has changed"):
        manager.hold(plan)
    assert manager.num_blocks(request) == 0
    end(manager, first)
    plan = manager.plan_admission(request)
    assert plan.prefix.num_tokens == 16
    other = make_request("other", prompt=range(100, 120))
    assert manager.allocate(other, 20)  # takes the blocks that were found
    with pytest.raises(BrokenPlanError, match="index has changed"):
        manager.hold(plan)
    end(manager, request, other)


def test_a_plan_for_offloaded_blocks_that_are_gone_is_refused() -> None:
    for offload in (Offload(num_swap_slots=8), Offload(max_read_blocks=5)):
        manager = make_manager(num_blocks=6, offload=offload)
        request = make_request("a", 20)
        compute(manager, request, 16)
        lose(manager, request)
        manager.release_tail(request, 4)
        request.num_computed_tokens = 0
        read(manager, request, (0, 1, 2, 3), (4, 5, 6, 7))
        plan = manager.plan_admission(request)
        assert plan.prefix.restored is not None
        manager.hold(plan)
        offload.drop(request.request_id)
        with pytest.raises(BrokenPlanError):
            manager.admit(plan)
        end(manager, request)


# ---- why a prefix is not found


def test_a_request_with_blocks_of_its_own_takes_the_quick_way() -> None:
    manager = make_manager()
    request = make_request("a", 5)
    begin(manager, request)
    compute(manager, request, 5)
    tables = manager._tables_of(request)
    assert [tables.is_writable(5, end) for end in (6, 8, 9)] == [True, True, False]
    manager.fork(request, make_request("b", 5))
    assert not tables.is_writable(5, 6)


def test_a_fork_that_differs_within_a_block_is_found_by_its_own_text() -> None:
    manager = make_manager()
    parent, child = make_request("p", 13), make_request("c", prompt=[*range(6), *range(50, 57)])
    begin(manager, parent)
    compute(manager, parent, 13)
    child.num_computed_tokens = manager.fork(parent, child, 6)
    compute(manager, child, 13)
    end(manager, parent, child)
    for number, request in enumerate((parent, child)):
        again = make_request(f"{number}", prompt=request.prompt_token_ids)
        assert begin(manager, again) == PrefixMatch(12, 0, None)


def test_a_request_whose_blocks_are_in_memory_does_not_wait_for_what_others_read() -> None:
    manager = make_manager(offload=Offload(max_read_blocks=2))
    first = make_request("a", 9)
    begin(manager, first)
    compute(manager, first, 9)
    manager.take_block_ops()
    for number in (7, 8, 9):
        assert manager.start_reading(make_request(f"{number}", prompt=[number] * 5))
    assert len(manager.take_block_ops()) == 2, "there is room for two blocks, and the third waits"
    assert not manager.start_reading(make_request("d", 9))


OWN = {"caller": "own", "cache_salt": CacheSalt("first")}
SALTED = {"cache_salt": CacheSalt("second")}
DISABLED = PrefixMatch(0, 0, PrefixMiss(MissReason.DISABLED, 0))


@pytest.mark.parametrize(
    ("num_tokens", "knobs", "first", "second", "expected"),
    [
        (9, {}, None, {}, PrefixMatch(0, 0, PrefixMiss(MissReason.NEVER_SEEN, 0))),
        (9, {}, {}, {}, PrefixMatch(8, 0, None)),
        # What is left is shorter than a block.
        (11, {}, {}, {}, PrefixMatch(8, 0, PrefixMiss(MissReason.PARTIAL_BLOCK, 8))),
        # It is there under another salt, which only the same caller is told: others could ask what it has asked.
        (9, {}, OWN, OWN | SALTED, PrefixMatch(0, 0, PrefixMiss(MissReason.SALT, 0))),
        (9, {}, OWN, SALTED, PrefixMatch(0, 0, PrefixMiss(MissReason.NEVER_SEEN, 0))),
        (9, {}, {}, {"prompt_logprobs": 1}, DISABLED),
        (9, {"enable_prefix_caching": False}, {}, {}, DISABLED),
    ],
)
def test_what_is_found_and_why_no_more(
    num_tokens: int,
    knobs: dict[str, object],
    first: dict[str, Any] | None,
    second: dict[str, Any],
    expected: PrefixMatch,
) -> None:
    manager = make_manager(**knobs)
    if first is not None:
        earlier = make_request("a", num_tokens, **first)
        begin(manager, earlier)
        compute(manager, earlier, num_tokens)
    assert begin(manager, make_request("b", num_tokens, **second)) == expected


def test_another_text_goes_on_differently() -> None:
    manager = make_manager()
    for name, last in (("far", 9), ("near", 6)):
        request = make_request(name, prompt=[0, 1, 2, 3, 4, 5, last, last, 8])
        begin(manager, request)
        compute(manager, request, 9)
        end(manager, request)
    miss = begin(manager, make_request("c", prompt=[0, 1, 2, 3, 4, 5, 6, 7, 8])).miss
    assert miss == PrefixMiss(MissReason.DIFFERS, 4, "near", 7, (7, 6))
    # Also at the first token of a block; but texts that have nothing in common do not differ.
    miss = begin(manager, make_request("d", prompt=[0, 1, 2, 3, 9, 9, 9, 9, 9])).miss
    assert (miss.reason, miss.differs_at_token, miss.differing_token_ids[0]) == (
        MissReason.DIFFERS,
        4,
        9,
    )
    assert begin(manager, make_request("e", prompt=[7] * 9)).miss.reason is MissReason.NEVER_SEEN


@pytest.mark.parametrize(("num_newer", "near"), [(31, "near"), (32, "31")])
def test_the_32_newest_of_many_texts_that_begin_alike_are_compared(
    num_newer: int, near: str
) -> None:
    manager = make_manager(num_blocks=64)
    newer = {f"{number}": [0, 5 + number, 0, 0, 0] for number in range(num_newer)}
    for name, prompt in ({"near": [0, 1, 2, 9, 9]} | newer).items():
        request = make_request(name, prompt=prompt)
        begin(manager, request)
        compute(manager, request, 5)
        end(manager, request)
    miss = begin(manager, make_request("own", prompt=[0, 1, 2, 3, 4])).miss
    assert miss.near_request_id == near


def test_of_a_group_with_a_window_the_blocks_that_the_next_token_sees_are_read() -> None:
    """Blocks of four tokens; a token sees eight. As many blocks are reserved as are read."""
    offload = Offload(max_read_blocks=14)
    manager = make_manager(offload=offload, windows=(None, 8))
    request = make_request("a", 41)
    assert manager.start_reading(request)
    (op,) = manager.take_block_ops()
    assert op.prefixes[-1].num_blocks == 10
    needed = [
        [(op.keys[i].key.group, op.keys[i].key.index) for i in op.needed(prefix)]
        for prefix in op.prefixes
    ]
    seen = [manager.needs.first_block(4 * length, 8) for length in range(1, 11)]
    for length, (own, first) in enumerate(zip(needed, seen, strict=True), 1):
        assert sorted(own) == [
            *((0, index) for index in range(length)),
            *((1, index) for index in range(first, length)),
        ]
    most = max(map(len, needed))
    assert most == 14 and offload.reads.num_readable_blocks == 0


@pytest.mark.parametrize(("num_slots", "is_room"), [(2, False), (3, True)])
def test_states_are_swapped_out_where_a_block_has_room_as_well(
    num_slots: int, is_room: bool
) -> None:
    swapped = Offload(num_swap_slots=num_slots, blocks_per_state=2).swapped
    states = swapped.swap_out_states("r", 8, number=0)
    assert (states is not None) == is_room == swapped.has("r")
    assert swapped.swap_out("r", (0, 0), block_id=1) is not None
