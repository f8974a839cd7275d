"""Slots of recurrent states: who has one, what forks copy, and that a request gives all or nothing back."""

from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.prefix_index import MissReason
from pellucid.scheduling.scheduler_output import CopyState
from pellucid.scheduling.state_pool import StatePool
from support.scheduling import make_request


def make_manager(num_slots: int = 4, num_blocks: int = 8) -> KVCacheManager:
    return KVCacheManager(BlockPool(num_blocks), 16, state_pool=StatePool(num_slots))


def computed(manager, request_id, num_tokens=20):
    """A request whose tokens are computed."""
    request = make_request(request_id, num_prompt_tokens=num_tokens)
    assert manager.allocate(request, num_tokens)
    request.num_computed_tokens = num_tokens
    return request


def copies(manager):
    return [op for op in manager.take_block_ops() if isinstance(op, CopyState)]


def test_a_request_has_a_slot_as_long_as_it_has_blocks() -> None:
    manager = make_manager()
    request = computed(manager, "a")
    assert manager.state_pool.num_free_slots == 3
    manager.check_integrity()
    manager.forget(request)
    assert manager.state_pool.num_free_slots == 4
    manager.check_integrity()


def test_without_a_free_slot_a_block_lacks() -> None:
    manager = make_manager(num_slots=1)
    first = computed(manager, "a")
    second = make_request("b", num_prompt_tokens=1)
    assert manager.num_lacking_blocks(second, 1) == 1
    assert not manager.allocate(second, 1)
    assert manager.num_blocks(second) == 0
    manager.forget(first)
    assert manager.allocate(second, 1)


def test_all_blocks_go_back_or_none() -> None:
    manager = make_manager()
    request = computed(manager, "a", 60)
    assert manager.give_back(request, 1) == 4
    assert manager.num_blocks(request) == 0
    assert manager.state_pool.num_free_slots == 4


def test_a_fork_copies_the_states() -> None:
    manager = make_manager()
    parent, child = computed(manager, "a"), make_request("b", num_prompt_tokens=20)
    assert manager.fork(parent, child) == 20
    assert copies(manager) == [CopyState(manager.state_slot(parent), manager.state_slot(child))]
    manager.check_integrity()


def test_a_fork_computes_again_where_no_slot_is_free_or_the_states_are_of_more_tokens() -> None:
    manager = make_manager(num_slots=1)
    parent, child = computed(manager, "a"), make_request("b", num_prompt_tokens=20)
    assert manager.fork(parent, child) == 0
    assert manager.num_blocks(child) == 0
    manager = make_manager()
    parent = computed(manager, "a")
    assert manager.num_forkable(parent, 19) == 0
    assert manager.num_forkable(parent, 25) == 20


def test_beams_move_and_copy_states_with_as_many_slots_as_beams() -> None:
    manager = make_manager(num_slots=3, num_blocks=20)
    requests = [computed(manager, name) for name in "abc"]
    slots = [manager.state_slot(request) for request in requests]
    # b continues a, c continues b, a keeps its own text: nothing of c is left.
    assert manager.reassign(requests, [0, 0, 1]) == [20, 20, 20]
    for request in requests:
        request.num_computed_tokens = 20
    assert manager.state_slot(requests[0]) == slots[0]
    assert manager.state_slot(requests[2]) == slots[1]
    assert copies(manager) == [CopyState(slots[0], slots[2])]
    manager.check_integrity()
    # All change places: nothing is copied.
    slots = [manager.state_slot(request) for request in requests]
    assert manager.reassign(requests, [1, 2, 0]) == [20, 20, 20]
    assert [manager.state_slot(request) for request in requests] == [*slots[1:], slots[0]]
    assert copies(manager) == []
    manager.check_integrity()


def test_nothing_is_found_of_other_requests_and_the_reason_is_said() -> None:
    manager = make_manager()
    first = computed(manager, "a", 64)
    manager.seal(first, 0)
    second = make_request("b", num_prompt_tokens=64)
    assert manager.match_prefix(second) == 0
    match = manager.admit(second)
    assert match.num_tokens == 0
    assert match.miss is not None and match.miss.reason is MissReason.RECURRENT
