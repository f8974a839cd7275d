"""Slots of open keys: who has one, how far back a request can go with it, and who gives it to another."""

import numpy as np
import pytest

from pellucid.engine.inspection import AnswerSoFar
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block_ops import Copy, SlotKind
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.open_keys import OpenSlots
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler import Scheduler
from support.fake_model import fake_engine, fake_logits
from support.scheduling import make_request, run, step

GROUP = 32


def make_manager(num_slots: int = 4, num_blocks: int = 16, **knobs: object) -> KVCacheManager:
    slots = OpenSlots(num_slots, GROUP)
    return KVCacheManager(BlockPool(num_blocks), GROUP, open_slots=slots, **knobs)


def computed(manager: KVCacheManager, name: str, num_tokens: int) -> Request:
    """A request whose tokens are computed."""
    request = make_request(name, num_prompt_tokens=num_tokens)
    assert manager.allocate(request, num_tokens)
    request.num_computed_tokens = num_tokens
    return request


def rewind(manager: KVCacheManager, request: Request, num_tokens: int) -> int:
    request.num_computed_tokens = manager.rewind(request, num_tokens)
    manager.check_integrity()
    return request.num_computed_tokens


def copies(manager: KVCacheManager) -> list[tuple[int, int]]:
    """Between which slots."""
    ops = [op for op in manager.take_block_ops() if isinstance(op, Copy)]
    return [(op.source.id, op.target.id) for op in ops if op.source.kind is SlotKind.STATES]


@pytest.mark.parametrize(
    ("furthest", "reached"),
    [
        (70, {69: 69, 64: 64, 63: 63, 33: 33, 32: 32, 31: 0, 0: 0}),  # groups 1 and 2 are there
        (64, {63: 63, 31: 31, 1: 1}),
        (65, {33: 33, 31: 0}),
        (97, {64: 64, 63: 32, 40: 32}),
    ],
)
def test_a_request_goes_back_within_its_two_latest_groups_or_to_the_beginning_of_one(
    furthest: int, reached: dict[int, int]
) -> None:
    for wanted, found in reached.items():
        manager = make_manager()
        assert rewind(manager, computed(manager, "a", furthest), wanted) == found


def test_what_a_wrong_draft_has_overwritten_is_not_found_again() -> None:
    manager = make_manager()
    request = computed(manager, "a", 66)  # group 2 is where group 0 was
    assert rewind(manager, request, 40) == 40
    assert rewind(manager, request, 30) == 0
    # From here on group 0 is there again, and group 1 once it is computed.
    assert manager.allocate(request, 45)
    request.num_computed_tokens = 45
    assert rewind(manager, request, 30) == 30


def test_a_fork_copies_the_slot_unless_a_group_begins() -> None:
    manager = make_manager()
    parent = computed(manager, "a", 70)
    child, whole = (make_request(name, num_prompt_tokens=70) for name in "bc")
    assert manager.fork(parent, child) == 70
    child.num_computed_tokens = 70
    assert copies(manager) == [(manager.state_slot(parent), manager.state_slot(child))]
    assert manager.fork(parent, whole, 64) == 64
    whole.num_computed_tokens = 64
    assert copies(manager) == [] and not manager.open_keys.has_slot(whole)
    assert rewind(manager, child, 33) == 33  # it has both groups
    earlier = make_request("d", num_prompt_tokens=70)
    assert manager.fork(parent, earlier, 20) == 0  # group 0 is not open any more
    manager.check_integrity()


def test_blocks_that_have_left_the_window_take_the_way_back_with_them() -> None:
    manager = make_manager(num_slots=1, windows=(34,), max_chunk=64)
    parent, child = computed(manager, "a", 64), make_request("b", num_prompt_tokens=94)
    assert manager.allocate(parent, 94)
    parent.num_computed_tokens = 94
    manager.free_out_of_window(parent)
    assert manager.num_forkable(parent, 94) == 94
    assert manager.fork(parent, child) == 0
    manager.check_integrity()


def test_a_waiting_request_keeps_its_slot_until_another_needs_it() -> None:
    manager = make_manager(num_slots=2)
    scheduler = Scheduler(manager, EventBus(), max_num_seqs=1, max_num_batched_tokens=100)
    first = make_request("first", num_prompt_tokens=40, priority=1)
    scheduler.add_request(first)
    step(scheduler)
    urgent = make_request("urgent", num_prompt_tokens=3)
    scheduler.add_request(urgent)
    step(scheduler)  # the urgent one takes the seat
    assert manager.open_keys.has_slot(first) and first.num_computed_tokens == 40
    look = make_request("look", num_prompt_tokens=1)
    scheduler.free_slot(look)
    assert not manager.open_keys.has_slot(first) and first.num_computed_tokens == 32
    assert manager.allocate(look, 1)
    scheduler.check_integrity()
    manager.forget(look)
    run(scheduler)
    assert first.num_processed_tokens == 40 + (40 - 32) + first.max_tokens - 1


@pytest.mark.parametrize("block_size", [GROUP, 2 * GROUP])  # it goes on in a block that it has
def test_a_look_takes_the_slot_of_a_request_that_waits(block_size: int) -> None:
    engine = fake_engine(kv_cache_dtype="int4", block_size=block_size, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    first = engine.add_request([1] * 40, params, priority=1)
    engine.step()
    engine.add_request([2] * 3, params)
    engine.step()  # takes the seat, and the other slot
    look = AnswerSoFar(engine.prepare([3], params), 1, 0, (), None)
    assert (engine.inspector.logits(look).logits == fake_logits([3]).astype(np.float32)).all()
    while not first.finished:
        engine.step()
    assert first.metrics.num_processed_tokens == 40 + (40 - 32) + 2
