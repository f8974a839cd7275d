"""The scheduler's events: their fields in each case. test_scheduler_traces.py checks that they are true."""

from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import (
    Event,
    Level,
    Preempted,
    PrefixMatched,
    RequestStateChanged,
)
from pellucid.scheduling.scheduler import Scheduler
from support.scheduling import (
    make_request,
    make_scheduler,
    run,
    step,
    update,
)


def watched(level: Level = Level.STEP, **knobs: object) -> tuple[Scheduler, list[Event]]:
    bus, events = EventBus(), []
    bus.subscribe(lambda record: events.append(record.event), level)
    return make_scheduler(events=bus, **knobs), events


def moves(events: list[Event], name: str) -> list[tuple[str, str, str]]:
    return [
        (event.from_, event.to, event.reason)
        for event in events
        if isinstance(event, RequestStateChanged) and event.req == name
    ]


def test_why_the_first_that_waits_has_to_wait_said_once() -> None:
    scheduler, events = watched(num_blocks=5, max_num_seqs=2)
    scheduler.add_request(make_request("a", 12, max_tokens=4))
    step(scheduler)
    scheduler.add_request(make_request("b", 12, max_tokens=1))
    step(scheduler)
    step(scheduler)
    (event,) = [e for e in events if isinstance(e, RequestStateChanged) and e.req == "b"]
    assert (event.reason, event.blocked_by) == ("no_blocks", ("a",))
    assert (event.need_blocks, event.free_blocks) == (2, 1)
    run(scheduler)

    scheduler, events = watched(max_num_seqs=1)
    for name in "ab":
        scheduler.add_request(make_request(name, 2, max_tokens=2))
    step(scheduler)
    assert moves(events, "b") == [("waiting", "waiting", "no_seats")]

    scheduler, events = watched(max_num_seqs=10)
    for number in range(11):
        scheduler.add_request(make_request(f"r{number}", 2, max_tokens=2))
    step(scheduler)
    (event,) = [e for e in events if isinstance(e, RequestStateChanged) and e.req == "r10"]
    assert event.blocked_by == tuple(f"r{number}" for number in range(9, 1, -1))  # eight


def test_what_preemption_costs_and_for_whom() -> None:
    scheduler, events = watched(num_blocks=8, max_num_seqs=1, num_swap_slots=1)
    scheduler.add_request(make_request("low", 24, priority=1))
    step(scheduler)
    scheduler.add_request(make_request("high", 20, max_tokens=1))
    step(scheduler)
    (event,) = [e for e in events if isinstance(e, Preempted)]
    assert event == Preempted("low", "swap", 12, 3, "high", 1)
    assert moves(events, "low")[-2:] == [
        ("decode", "preempted", "preempted"),
        ("preempted", "preempted", "no_seats"),
    ]
    run(scheduler)
    assert ("preempted", "prefill", "admitted") in moves(events, "low")


def test_what_was_found_and_why_not_more() -> None:
    scheduler, events = watched(enable_prefix_caching=True)
    for name, prompt in (("a", range(12)), ("b", [0, 1, 2, 3, 4, 5, 9, 9, 9])):
        scheduler.add_request(make_request(name, prompt=prompt, max_tokens=1))
        run(scheduler)
    assert events[[e.ev for e in events].index("req.prefix")].miss_why == "never_seen"
    (event,) = [e for e in events if isinstance(e, PrefixMatched) and e.req == "b"]
    assert event == PrefixMatched("b", 4, 1, 4, "differs", "a", 6, (9, 6))


def test_blocks_are_not_told_to_those_who_did_not_ask() -> None:
    scheduler, events = watched(Level.STAT)
    scheduler.add_request(make_request("a", 6, max_tokens=3))
    run(scheduler)
    assert {event.ev for event in events} == {"req.prefix", "req.state"}
    assert scheduler.kv_cache_manager.block_pool.log.take() == ((), ())


def test_who_comes_late_hears_from_then_on() -> None:
    bus, events = EventBus(), []
    scheduler = make_scheduler(events=bus)
    scheduler.add_request(make_request("a", 6, max_tokens=4))
    step(scheduler)
    output = scheduler.schedule(0.0)
    unsubscribe = bus.subscribe(lambda record: events.append(record.event), Level.STEP)
    update(scheduler, output, {"a": [50]}, 1.0)  # no `stat` of a part of a step
    step(scheduler, 1.0)
    unsubscribe()
    run(scheduler)
    assert [event.ev for event in events] == ["kv"]
    assert scheduler._events._states == {}
