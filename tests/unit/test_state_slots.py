"""Slots of recurrent states: who has one, what forks copy, and that a request gives all or nothing back."""

from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block_ops import Copy, Slot, SlotKind, SwapIn, SwapOut
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.prefix_index import MissReason
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.state_pool import StatePool
from support.scheduling import make_request, shares, step, update

BLOCK, STATES = SlotKind.BLOCK, SlotKind.STATES


def make_manager(num_slots: int = 4, num_blocks: int = 8) -> KVCacheManager:
    return KVCacheManager(BlockPool(num_blocks), 16, state_pool=StatePool(num_slots))


def computed(manager, request_id, num_tokens=20):
    """A request whose tokens are computed."""
    request = make_request(request_id, num_prompt_tokens=num_tokens)
    assert manager.allocate(request, num_tokens)
    request.num_computed_tokens = num_tokens
    return request


def copies(manager):
    ops = [op for op in manager.take_block_ops() if isinstance(op, Copy)]
    return [op for op in ops if op.source.kind is SlotKind.STATES]


def copy(source, target):
    return Copy(Slot(SlotKind.STATES, source), Slot(SlotKind.STATES, target))


def kinds(ops):
    return [(type(op), (op.target if isinstance(op, Copy) else op.slot).kind) for op in ops]


def test_without_a_free_slot_a_block_lacks() -> None:
    manager = make_manager(num_slots=1)
    first = computed(manager, "a")
    second = make_request("b", num_prompt_tokens=1)
    assert manager.num_missing_blocks(second, 1) == 1
    assert not manager.allocate(second, 1)
    assert manager.num_blocks(second) == 0
    manager.forget(first)
    assert manager.allocate(second, 1)


def test_a_fork_computes_again_where_no_slot_is_free_or_the_states_are_of_more_tokens() -> None:
    manager = make_manager(num_slots=1)
    parent, child = computed(manager, "a"), make_request("b", num_prompt_tokens=20)
    assert manager.fork(parent, child) == 0
    assert manager.num_blocks(child) == 0
    assert manager.reassign([parent, child], [0, 0]) == [20, 0]
    manager = make_manager()
    parent = computed(manager, "a")
    assert manager.num_forkable(parent, 19) == 0
    assert manager.num_forkable(parent, 20) == 20
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
    assert copies(manager) == [copy(slots[0], slots[2])]
    manager.check_integrity()
    # All change places: nothing is copied.
    slots = [manager.state_slot(request) for request in requests]
    assert manager.reassign(requests, [1, 2, 0]) == [20, 20, 20]
    assert [manager.state_slot(request) for request in requests] == [*slots[1:], slots[0]]
    assert copies(manager) == []
    manager.check_integrity()


# ---- drafts


def test_after_a_wrong_draft_a_step_computes_the_right_ones_again_and_has_no_drafts() -> None:
    manager = KVCacheManager(BlockPool(40), 4, state_pool=StatePool(2, num_spares=1))
    scheduler = Scheduler(manager, EventBus(), 2, 100)
    request, other = make_request("a", 6, 20), make_request("b", 6, 20)
    scheduler.add_request(request)
    scheduler.add_request(other)
    step(scheduler, token_id=10)
    scheduler.draft({"a": [11, 12, 13], "b": [11]})
    output = scheduler.schedule(0.0)
    assert shares(output) == [("a", 6, 10), ("b", 6, 7)]  # one slot to go back to
    update(scheduler, output, {"a": [11, 14], "b": [11]}, 0.0)
    scheduler.check_integrity()
    assert (request.num_computed_tokens, request.num_rewound_tokens) == (6, 2)
    assert request.is_decoding and not request.may_have_drafts
    scheduler.draft({"a": [15], "b": [12]})
    output = scheduler.schedule(0.0)
    assert shares(output) == [("a", 6, 9), ("b", 7, 9)]
    update(scheduler, output, {"a": [15], "b": [12, 13]}, 0.0)
    scheduler.check_integrity()
    assert request.output_token_ids == [10, 11, 14, 15]
    assert (request.num_computed_tokens, other.num_computed_tokens) == (9, 9)
    assert request.may_have_drafts


# ---- swap file


def test_states_and_blocks_come_back_from_the_swap_file_the_last_block_too() -> None:
    offload = Offload(6, blocks_per_state=2)
    manager = KVCacheManager(BlockPool(8), 16, False, offload, state_pool=StatePool(2))
    request = computed(manager, "a", 60)
    request.output_token_ids = [1]
    assert manager.release_tail(request, 1) == 4
    request.num_computed_tokens = 0
    ops = manager.take_block_ops()
    assert kinds(ops) == [(SwapOut, STATES), *[(SwapOut, BLOCK)] * 4]
    assert admit(manager, request).num_tokens == 60
    ops = manager.take_block_ops()
    assert kinds(ops) == [*[(SwapIn, BLOCK)] * 4, (SwapIn, STATES)]
    assert ops[-1].slot.id == manager.state_slot(request)
    assert manager.num_blocks(request) == 4


# ---- snapshots


def with_snapshots(num_snapshots: int = 4, num_slots: int = 4, num_blocks: int = 40):
    states = StatePool(num_slots, num_snapshots)
    return KVCacheManager(BlockPool(num_blocks), 16, state_pool=states, snapshot_tokens=32)


def advance(manager, request, *ends):
    """Steps that end at these positions."""
    for end in ends:
        assert manager.allocate(request, end)
        start, request.num_computed_tokens = request.num_computed_tokens, end
        manager.seal(request, start)
        manager.check_integrity()


def decode(manager, ends, *requests):
    """Each of these requests gets a token at a time, and computes it."""
    for end in ends:
        for request in requests:
            request.output_token_ids.append(end)
            advance(manager, request, end)


def admit(manager, request):
    plan = manager.plan_admission(request)
    request.num_computed_tokens = manager.hold(plan)
    match = manager.admit(plan)
    request.num_computed_tokens = match.num_tokens
    manager.check_integrity()
    return match


def test_a_hit_is_the_deepest_point_with_blocks_and_a_snapshot() -> None:
    manager = with_snapshots(num_snapshots=16)
    first = make_request("a", num_prompt_tokens=70)
    advance(manager, first, 32, 50, 64, 70)
    taken = copies(manager)
    assert [op.source.id for op in taken] == [manager.state_slot(first)] * 2
    assert [op.target.id for op in taken] == [4, 5]  # behind the slots of requests
    second = make_request("b", num_prompt_tokens=60)
    assert admit(manager, second).num_tokens == 32
    assert copies(manager) == [copy(4, manager.state_slot(second))]
    third = make_request("c", num_prompt_tokens=90)
    match = admit(manager, third)
    assert match.num_tokens == 64
    assert copies(manager) == [copy(5, manager.state_slot(third))]


def test_a_snapshot_outlives_its_request_and_the_least_recently_used_goes_first() -> None:
    manager = with_snapshots(num_snapshots=2)
    for name, first in (("a", 0), ("b", 100)):
        request = make_request(name, prompt=range(first, first + 40))
        advance(manager, request, 32, 40)
        manager.forget(request)
    again = make_request("again", prompt=range(40))
    assert admit(manager, again).num_tokens == 32
    manager.forget(again)
    advance(manager, make_request("c", prompt=range(200, 240)), 32, 40)  # in place of b's
    assert admit(manager, make_request("d", prompt=range(40))).num_tokens == 32
    assert admit(manager, make_request("e", prompt=range(100, 140))).num_tokens == 0


def test_of_an_output_the_latest_snapshot_is_kept() -> None:
    manager = with_snapshots()
    request = make_request("a", num_prompt_tokens=20)
    advance(manager, request, 16, 20)
    decode(manager, range(21, 66), request)
    text = request.token_ids(0, 65)
    manager.forget(request)
    assert admit(manager, make_request("b", prompt=text)).num_tokens == 64
    assert admit(manager, make_request("c", prompt=text[:60])).num_tokens == 16
    assert manager.states.pool.log.take() == ((), ()), "nobody has asked"


def test_outputs_of_many_decoders_leave_prompts_their_snapshots() -> None:
    manager = with_snapshots(num_snapshots=8, num_slots=20, num_blocks=200)
    head = make_request("head", num_prompt_tokens=40)
    advance(manager, head, 32, 40)
    manager.forget(head)
    decoders = [make_request(f"d{i}", prompt=range(100 * i, 100 * i + 15)) for i in range(1, 20)]
    for request in decoders:
        advance(manager, request, 15)
    decode(manager, range(16, 66), *decoders)
    assert manager.states.pool.num_used_snapshots == 5  # the prompt's, and the share of outputs
    again = make_request("again", num_prompt_tokens=40)
    assert admit(manager, again).num_tokens == 32
    # The end of an answer is the beginning of the next prompt: it counts as one.
    texts = [request.token_ids(0, 65) for request in decoders[-4:]]
    for request in decoders[::-1]:
        manager.forget(request)
    manager.forget(again)
    others = [make_request(f"o{i}", prompt=range(3000 * i, 3000 * i + 15)) for i in range(1, 5)]
    for request in others:
        advance(manager, request, 15)
    decode(manager, range(16, 34), *others)
    for request in others:
        manager.forget(request)
    assert admit(manager, make_request("next", prompt=[*texts[-1], 1])).num_tokens == 64


def test_a_snapshot_that_a_prompt_uses_stays_when_the_output_goes_on() -> None:
    manager = with_snapshots()
    request = make_request("a", num_prompt_tokens=20)
    advance(manager, request, 16, 20)
    decode(manager, range(21, 34), request)
    text = request.token_ids(0, 33)
    other = make_request("b", prompt=text)
    advance(manager, other, 32)
    decode(manager, range(34, 66), request)
    assert admit(manager, make_request("c", prompt=text)).num_tokens == 32


def test_where_a_prompt_parts_from_cached_text_a_snapshot_is_taken() -> None:
    manager = with_snapshots()
    head = range(40)
    advance(manager, make_request("a", prompt=[*head, *range(100, 140)]), 64, 80)
    second = make_request("b", prompt=[*head, *range(200, 240)])
    match = admit(manager, second)
    assert match.num_tokens == 0
    assert match.miss is not None and match.miss.reason is MissReason.RECURRENT
    assert match.miss.snapshot_at_token == 32
    assert manager.states.num_tokens_to_snapshot(second, 0) == 32
    assert manager.states.num_tokens_to_snapshot(second, 32) == 32
    advance(manager, second, 32, 64, 80)
    third = admit(manager, make_request("c", prompt=[*head, *range(300, 340)]))
    assert third.num_tokens == 32
    assert third.miss is not None and third.miss.reason is MissReason.DIFFERS


def test_a_long_prompt_takes_a_snapshot_every_so_many_tokens_and_a_quarter_of_the_slots() -> None:
    def wanted(num_snapshots: int) -> list[int]:
        manager = with_snapshots(num_snapshots)
        request = make_request("a", num_prompt_tokens=400)
        ends = [0]
        while num_tokens := manager.states.num_tokens_to_snapshot(request, ends[-1]):
            ends.append(ends[-1] + num_tokens)
        return ends[1:]

    assert wanted(48) == [*range(32, 384, 32), 384]
    assert wanted(12) == [128, 256, 384]


def test_a_prompt_is_cut_at_its_last_full_block() -> None:
    manager = with_snapshots()
    request = make_request("a", num_prompt_tokens=70)
    assert manager.states.num_tokens_to_snapshot(request, 0) == 64
    assert manager.states.num_tokens_to_snapshot(request, 64) is None
    assert manager.states.num_tokens_to_snapshot(make_request("b", 64), 0) == 48
    assert manager.states.num_tokens_to_snapshot(make_request("c", 12), 0) is None
    assert make_manager().states.num_tokens_to_snapshot(request, 0) is None


def test_undefined_snapshots_are_forgotten() -> None:
    manager = with_snapshots()
    advance(manager, make_request("a", num_prompt_tokens=40), 32, 40)
    second = make_request("b", num_prompt_tokens=40)
    assert manager.plan_admission(second).num_missing == 0
    manager.reset_prefix_cache()
    assert admit(manager, second).num_tokens == 0
    # Its blocks are found again, and they do not lead to the snapshot from before.
    advance(manager, second, 20, 40)
    third = admit(manager, make_request("c", num_prompt_tokens=40))
    assert third.num_tokens == 0 and third.miss.reason is MissReason.RECURRENT
    manager.check_integrity()
