"""The scheduler: budgets, order, admission, prefix hits, decode and ends of requests."""

import pytest

from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.offload import Offload, PrefixReads, SwapSlots
from pellucid.scheduling.open_keys import OpenKeys, OpenSlots
from pellucid.scheduling.prefix_index import PrefixIndex
from pellucid.scheduling.recurrent_states import RecurrentStates
from pellucid.scheduling.request import FinishReason, RequestStatus
from pellucid.scheduling.request_queues import RequestQueues
from pellucid.scheduling.request_slots import RequestSlots
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.state_pool import StatePool
from support.scheduling import (
    BLOCK_SIZE,
    make_request,
    make_scheduler,
    run,
    shares,
    step,
    update,
)


def test_prefill_then_decode() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 6, max_tokens=3)
    scheduler.add_request(request)
    assert [shares(step(scheduler)) for _ in range(3)] == [
        [("a", 0, 6)],
        [("a", 6, 7)],
        [("a", 7, 8)],
    ]
    assert request.finish_reason is FinishReason.LENGTH
    assert request.stop_reason == "max_tokens"
    assert scheduler.kv_cache_manager.block_pool.num_free_blocks == 64


def test_without_the_cache_every_token_costs_the_whole_text() -> None:
    scheduler = make_scheduler(use_kv_cache=False)
    request = make_request("a", 3, max_tokens=4)
    scheduler.add_request(request)
    passes = [shares(step(scheduler)) for _ in range(4)]
    assert passes == [[("a", 0, 3)], [("a", 0, 4)], [("a", 0, 5)], [("a", 0, 6)]]
    assert request.num_processed_tokens == 3 + 4 + 5 + 6


def test_a_long_prompt_is_cut_and_decodes_go_first() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=10)
    scheduler.add_request(make_request("short", 4))
    step(scheduler)
    scheduler.add_request(make_request("long", 20))
    assert shares(step(scheduler)) == [("short", 4, 5), ("long", 0, 9)]
    assert shares(step(scheduler)) == [("short", 5, 6), ("long", 9, 18)]
    assert shares(step(scheduler)) == [("short", 6, 7), ("long", 18, 20)]
    assert shares(step(scheduler)) == [("short", 7, 8), ("long", 20, 21)]


def test_a_request_that_never_fits_is_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(num_blocks=3)
    with pytest.raises(ValueError, match=r"needs up to 13 positions .* holds 12"):
        scheduler.add_request(make_request("a", 6, max_tokens=8))
    scheduler.add_request(make_request("b", 5, max_tokens=8))


def test_full_blocks_are_found_again_but_never_the_last_token() -> None:
    scheduler = make_scheduler(enable_prefix_caching=True)
    scheduler.add_request(make_request("a", 8, max_tokens=1))
    step(scheduler)
    again, longer = make_request("b", 8, max_tokens=1), make_request("c", 9, max_tokens=1)
    other = make_request("d", 0, max_tokens=1, prompt=(7, *range(1, 9)))
    salted = make_request("e", 9, max_tokens=1, cache_salt=CacheSalt("someone else"))
    for request in (again, longer, other, salted):
        scheduler.add_request(request)
    assert shares(step(scheduler)) == [("b", 4, 8), ("c", 8, 9), ("d", 0, 9), ("e", 0, 9)]
    assert [r.num_cached_tokens for r in (again, longer, other, salted)] == [4, 8, 0, 0]


def test_max_time_ends_running_and_waiting_requests() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = (make_request(name, 3, max_time=5.0) for name in "ab")
    for request in (running, waiting):
        scheduler.add_request(request)
    step(scheduler, now=4.9)
    assert running.status is RequestStatus.RUNNING
    step(scheduler, now=5.0)
    assert scheduler.take_ended() == (running, waiting)
    assert (waiting.finish_reason, waiting.stop_reason) == (FinishReason.LENGTH, "max_time")
    assert not scheduler.has_unfinished_requests


def test_an_abort_between_schedule_and_update_frees_the_blocks() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3)
    scheduler.add_request(request)
    output = scheduler.schedule(0.0)
    scheduler.finish(request, FinishReason.ABORT)
    update(scheduler, output, {}, 0.0)
    scheduler.kv_cache_manager.check_integrity()
    assert scheduler.kv_cache_manager.block_pool.num_free_blocks == 64
    assert request.output_token_ids == []


def test_many_far_deadlines_are_forgotten_with_their_requests() -> None:
    scheduler = make_scheduler()
    for number in range(500):
        scheduler.add_request(make_request(f"{number}", 2, max_tokens=1, max_time=1e9))
        run(scheduler)
    assert len(scheduler._deadlines._entries) < 20


@pytest.mark.parametrize(
    "part",
    [
        *(RequestQueues, KVCacheManager, BlockPool, PrefixIndex, Offload, SwapSlots, PrefixReads),
        *(RecurrentStates, StatePool, RequestSlots, OpenKeys),
    ],
)
def test_a_check_of_the_whole_checks_each_part(part: type, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = {"block_pool": BlockPool(4), "block_size": BLOCK_SIZE}
    of_states = KVCacheManager(**pool, offload=Offload(), state_pool=StatePool(1))
    of_open_keys = KVCacheManager(**pool, open_slots=OpenSlots(1, BLOCK_SIZE))
    checked = []
    check = part.check_integrity
    monkeypatch.setattr(part, "check_integrity", lambda *args: checked.append(part) or check(*args))
    for manager in (of_states, of_open_keys):
        Scheduler(manager, EventBus(), 1, 8).check_integrity()
    assert len(checked) >= (2 if part is RequestSlots else 1)
