"""Fair shares between callers: who is served when, whatever another caller asks for."""

import math
from collections import Counter

import pytest

from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Level, RequestStateChanged
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler import Scheduler
from support.scheduling import BLOCK_SIZE, make_request, make_scheduler, run, shares, step

BUDGET = 32


def greedy_scheduler(num_requests: int = 40, prompt: int = 100, **knobs: object) -> Scheduler:
    """One caller's many long requests, as many as have seats running."""
    scheduler = make_scheduler(
        num_blocks=1000, **{"max_num_seqs": 8, "max_num_batched_tokens": BUDGET, **knobs}
    )
    for number in range(num_requests):
        scheduler.add_request(
            make_request(f"greedy{number}", prompt, max_tokens=200, caller="greedy", priority=-9)
        )
    for _ in range(30):
        step(scheduler)
    return scheduler


def steps_to_first_token(scheduler: Scheduler, request: Request) -> int:
    scheduler.add_request(request)
    for number in range(1, 1000):
        step(scheduler)
        if request.output_token_ids:
            return number
    raise AssertionError("no first token")


@pytest.mark.parametrize("num_prompt_tokens", [1, 20, 200])
@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_a_greedy_caller_delays_a_first_token_by_a_step_times_the_fair_share(
    num_prompt_tokens: int, weight: float
) -> None:
    """However many requests it has, however long, with whatever priority."""
    scheduler = greedy_scheduler()
    request = make_request("polite", num_prompt_tokens, caller="polite", caller_weight=weight)
    num_steps = steps_to_first_token(scheduler, request)
    room = BUDGET - scheduler.max_num_seqs  # what running requests that decode leave
    share = weight / (weight + 1.0)
    assert num_steps <= math.ceil(num_prompt_tokens / (room * share)) + 1


def test_without_fair_shares_it_would_wait_for_all_of_them() -> None:
    scheduler = greedy_scheduler(8)
    assert steps_to_first_token(scheduler, make_request("late", 20, caller="greedy")) > 150


def test_no_requests_preempt_each_other_in_turn_within_a_step() -> None:
    """In a small pool a caller with a weight has two large requests, another caller two small ones."""
    scheduler = make_scheduler(num_blocks=4, max_num_seqs=5, max_num_batched_tokens=2048)
    for name, num_tokens, caller in (
        ("small-0", 1, ""),
        ("small-1", BLOCK_SIZE - 2, ""),
        ("large-0", BLOCK_SIZE + 1, "a"),
        ("large-1", BLOCK_SIZE + 1, "a"),
    ):
        weight = 3.0 if caller else 1.0
        scheduler.add_request(
            make_request(name, num_tokens, max_tokens=2, caller=caller, caller_weight=weight)
        )
    run(scheduler)  # ends


def test_a_caller_gets_a_seat_of_one_that_has_more_than_its_share() -> None:
    scheduler = greedy_scheduler()
    assert len(scheduler.running) == 8
    scheduler.add_request(make_request("polite", 4, caller="polite"))
    output = step(scheduler)
    assert ("polite", 0, 4) in shares(output)
    (preempted,) = map(scheduler.requests.__getitem__, output.preempted)
    assert preempted.caller == "greedy"
    assert preempted.num_computed_tokens > 0  # it keeps its blocks


def test_a_caller_orders_its_own_requests_while_another_competes() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    low = make_request("low", 4, caller="a", priority=1)
    for request in (low, make_request("other", 4, caller="b")):
        scheduler.add_request(request)
    step(scheduler)
    scheduler.add_request(make_request("high", 4, caller="a"))
    assert step(scheduler).preempted == (low.request_id,)


@pytest.mark.parametrize(("num_seats", "num_taken"), [(8, 4), (7, 3)])
def test_seats_are_taken_up_to_the_fair_share_and_no_further(
    num_seats: int, num_taken: int
) -> None:
    """A seat that cannot be shared stays with its caller, although its other requests wait with their blocks."""
    scheduler = greedy_scheduler(prompt=10, max_num_seqs=num_seats, max_num_batched_tokens=100)
    for number in range(20):
        scheduler.add_request(make_request(f"{number}", 10, max_tokens=200, caller="other"))
    for _ in range(20):
        step(scheduler)
    seats = Counter(request.caller for request in scheduler.running)
    assert seats == {"greedy": num_seats - num_taken, "other": num_taken}


def test_blocks_are_taken_from_a_caller_that_has_all_of_them() -> None:
    scheduler = make_scheduler(num_blocks=20)
    scheduler.add_request(make_request("giant", 18 * BLOCK_SIZE, max_tokens=8, caller="a"))
    step(scheduler)
    small = make_request("small", 5 * BLOCK_SIZE, max_tokens=2, caller="b")
    assert steps_to_first_token(scheduler, small) == 1
    run(scheduler)


def test_two_requests_do_not_preempt_each_other_in_turn() -> None:
    """Each has more than half of the blocks: the first one to finish is the one that took them."""
    scheduler = make_scheduler(num_blocks=20)
    requests = [
        make_request(name, 12 * BLOCK_SIZE, max_tokens=20, caller=name) for name in ("a", "b")
    ]
    for request in requests:
        scheduler.add_request(request)
    run(scheduler)
    assert sum(request.num_preemptions for request in requests) <= 1


def test_tokens_are_computed_in_proportion_to_weights() -> None:
    scheduler = make_scheduler(num_blocks=4000, max_num_seqs=64, max_num_batched_tokens=50)
    for number in range(60):
        for caller, weight, length in (("a", 1.0, 90), ("b", 2.0, 30), ("c", 4.0, 210)):
            scheduler.add_request(
                make_request(
                    f"{caller}{number}",
                    length,
                    max_tokens=1,
                    caller=caller,
                    caller_weight=weight,
                )
            )
    computed: Counter[str] = Counter()
    for _ in range(140):
        for scheduled in step(scheduler).scheduled:
            caller = scheduler.requests[scheduled.request_id].caller
            computed[caller] += scheduled.num_scheduled_tokens
    assert sum(computed.values()) == 140 * 50
    for caller, weight in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        assert abs(computed[caller] - 140 * 50 * weight / 7) <= 210 + 50


def test_what_a_caller_did_not_use_is_no_credit() -> None:
    """It idled for long, then asks for much: from then on both get the same."""
    scheduler = greedy_scheduler(num_requests=100, prompt=40)
    for _ in range(100):
        step(scheduler)
    for number in range(50):
        scheduler.add_request(make_request(f"{number}", 40, max_tokens=1, caller="late"))
    computed: Counter[str] = Counter()
    for _ in range(40):
        for scheduled in step(scheduler).scheduled:
            caller = scheduler.requests[scheduled.request_id].caller
            computed[caller] += scheduled.num_scheduled_tokens
    assert abs(computed["late"] - computed["greedy"]) <= 40 + BUDGET


def test_priority_orders_the_requests_of_one_caller_alone() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name, caller, priority in (
        ("a0", "a", 0),
        ("a1", "a", -5),
        ("b0", "b", 100),
        ("b1", "b", 0),
    ):
        scheduler.add_request(make_request(name, 4, max_tokens=1, caller=caller, priority=priority))
    order = [shares(step(scheduler))[0][0] for _ in range(4)]
    assert order == ["a1", "b1", "a0", "b0"]


def test_nothing_is_counted_for_a_caller_that_is_alone() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, caller="own"))
    step(scheduler)
    assert scheduler._shares.virtual_time("own") == 0
    scheduler.add_request(make_request("b", 4, max_tokens=1, caller="other"))
    step(scheduler)
    counted = scheduler._shares.virtual_time("own")
    step(scheduler)
    assert scheduler._shares.virtual_time("own") == counted > 0


def test_a_caller_without_requests_is_forgotten() -> None:
    scheduler = make_scheduler()
    for number in range(50):
        scheduler.add_request(make_request(f"{number}", 4, caller=f"caller{number}"))
    run(scheduler)
    assert not scheduler._shares._accounts
    assert not scheduler._shares.is_contended


def test_events_say_behind_whom_a_request_waits() -> None:
    bus = EventBus()
    events: list[RequestStateChanged] = []
    bus.subscribe(
        lambda record: (
            events.append(record.event) if isinstance(record.event, RequestStateChanged) else None
        ),
        Level.STAT,
    )
    scheduler = make_scheduler(max_num_seqs=1, events=bus)
    for name, caller in (("a0", "a"), ("a1", "a"), ("a2", "a"), ("b0", "b"), ("b1", "b")):
        scheduler.add_request(make_request(name, 4, caller=caller))
    step(scheduler)
    told = {
        event.req: (event.reason, event.blocked_by) for event in events if event.to == "waiting"
    }
    assert told["a2"] == ("behind_own_requests", ("a1",))
    assert told["b1"] == ("behind_own_requests", ("b0",))
    run(scheduler)
