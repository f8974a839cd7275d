"""Preemption: which request gives blocks to which, how many, and how the blocks come back."""

import pytest

from pellucid.inputs.config import PRIORITY_SECONDS
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import BlockOps, Level
from pellucid.scheduling.block_ops import Slot, SlotKind, SwapIn, SwapOut
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler import Scheduler
from support.scheduling import make_request, make_scheduler, names, run, shares, step, update


def add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add_request(request)


def test_a_better_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(
        scheduler,
        make_request("second", 2, max_tokens=1),
        make_request("last", 2, max_tokens=1, priority=1),
        make_request("third", 2, max_tokens=1),
        make_request("first", 2, max_tokens=1, priority=-1),
    )
    assert [names(step(scheduler)) for _ in range(4)] == [
        ["first"],
        ["second"],
        ["third"],
        ["last"],
    ]


def test_a_level_of_priority_is_worth_its_seconds_so_that_everyones_turn_comes() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, make_request("low", 2, max_tokens=1, priority=2))
    add(
        scheduler,
        make_request("soon", 2, max_tokens=1, arrival_time=2 * PRIORITY_SECONDS - 0.1),
        make_request("late", 2, max_tokens=1, arrival_time=2 * PRIORITY_SECONDS + 0.1),
    )
    assert [names(step(scheduler)) for _ in range(3)] == [["soon"], ["low"], ["late"]]


def test_a_better_priority_takes_a_seat_and_its_owner_keeps_its_blocks() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    low, high = make_request("low", 6, priority=1), make_request("high", 2, max_tokens=2)
    add(scheduler, low)
    step(scheduler)
    add(scheduler, high)
    output = step(scheduler)
    assert names(output) == ["high"]
    assert output.preempted == (low.request_id,)
    assert low.num_computed_tokens == 6
    step(scheduler)
    assert shares(step(scheduler)) == [("low", 6, 7)]


def test_a_better_priority_takes_blocks_only_if_they_will_do() -> None:
    scheduler = make_scheduler(num_blocks=8)
    add(scheduler, make_request("peer", 12), make_request("low", 12, priority=1))
    step(scheduler)  # three blocks each
    add(scheduler, make_request("huge", 24, max_tokens=1))
    output = step(scheduler)  # even with all of low's it would lack one
    assert output.preempted == () and names(output) == ["peer", "low"]
    scheduler.finish(next(iter(scheduler.waiting)), FinishReason.ABORT)
    add(scheduler, make_request("fits", 9, max_tokens=1))
    output = step(scheduler)
    assert output.preempted == ("low",)
    assert names(output) == ["peer", "fits"]


def test_nobody_overtakes_the_first_that_waits() -> None:
    scheduler = make_scheduler(num_blocks=6)
    add(scheduler, make_request("running", 12), make_request("large", 14), make_request("small", 1))
    assert names(step(scheduler)) == ["running"]


def test_no_more_blocks_are_given_back_than_are_needed() -> None:
    scheduler = make_scheduler(num_blocks=7)
    old, new = make_request("old", 7, max_tokens=15), make_request("new", 16, max_tokens=8)
    add(scheduler, old, new)
    manager = scheduler.kv_cache_manager
    step(scheduler)
    step(scheduler)
    assert (manager.num_blocks(old), manager.num_blocks(new)) == (2, 5)
    assert step(scheduler).preempted == (new.request_id,)
    assert (manager.num_blocks(old), manager.num_blocks(new)) == (3, 4)
    assert new.num_computed_tokens == 16
    assert new.status is RequestStatus.WAITING
    for _ in range(4):
        assert step(scheduler).preempted == ()
    assert (manager.num_blocks(old), manager.num_blocks(new)) == (4, 3)
    assert new.num_preemptions == 1
    run(scheduler)
    assert old.num_output_tokens == 15 and new.num_output_tokens == 8


def test_swapped_blocks_come_back_and_their_slots_are_free() -> None:
    scheduler = make_scheduler(num_blocks=8, num_swap_slots=2, max_num_seqs=1)
    manager = scheduler.kv_cache_manager
    low = make_request("low", 23, priority=1)
    add(scheduler, low)
    step(scheduler)
    add(scheduler, make_request("high", 20, max_tokens=1, priority=0))
    assert names(step(scheduler)) == ["high"]
    # Three blocks went: the last one was not full, and is computed again.
    assert manager.take_block_ops() == (
        SwapOut(Slot(SlotKind.BLOCK, 4), (0,)),
        SwapOut(Slot(SlotKind.BLOCK, 3), (1,)),
    )
    assert low.num_computed_tokens == 12
    assert shares(step(scheduler)) == [("low", 20, 24)]
    assert low.num_cached_tokens == 0
    (first, second) = manager.take_block_ops()
    assert isinstance(first, SwapIn) and isinstance(second, SwapIn)
    assert (first.swap_slots, second.swap_slots) == ((1,), (0,))
    ids = manager.block_tables(low)[0]
    assert (first.slot, second.slot) == (Slot(SlotKind.BLOCK, ids[3]), Slot(SlotKind.BLOCK, ids[4]))
    run(scheduler)


def test_a_request_that_has_to_wait_takes_nothing_and_looks_up_its_prefix_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus, rows = EventBus(), []
    scheduler = make_scheduler(num_blocks=12, enable_prefix_caching=True, events=bus)
    first = make_request("a", 33, max_tokens=12)
    scheduler.add_request(first)
    step(scheduler)
    bus.subscribe(
        lambda record: (
            rows.extend(record.event.ops) if isinstance(record.event, BlockOps) else None
        ),
        Level.STEP,
    )
    blocked = make_request("b", prompt=(*range(32), *[7] * 15), max_tokens=1)
    scheduler.add_request(blocked)
    step(scheduler)
    index = scheduler.kv_cache_manager.block_pool.index
    lookups = []
    monkeypatch.setattr(index, "find", lambda key: lookups.append(key))
    for _ in range(2):  # nothing happens to blocks: the other one goes on within its last one
        update(scheduler, scheduler.schedule(0.0), {"a": [50]}, 0.0)
    assert blocked.status is RequestStatus.WAITING
    assert not {op for op, *_ in rows} & {"A", "S", "R"}
    assert lookups == []
    monkeypatch.undo()
    run(scheduler)
    assert blocked.num_cached_tokens == 32
