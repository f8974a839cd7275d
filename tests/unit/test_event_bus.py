"""The event bus: order, levels, gapless numbers, and subscribers that fail."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import BlockOps, EventRecord, Level, RequestStateChanged, Warn


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def warning(code: str = "a") -> Warn:
    return Warn(code, "something")


def step_event() -> BlockOps:
    return BlockOps((("A", 3, "r/0", 0),), used=1, cached=0, free=7, waste_tok=15)


def test_nobody_listens() -> None:
    bus = EventBus()
    assert not bus.active
    assert not bus.wants(Level.STAT)
    unsubscribe = bus.subscribe(lambda record: None, Level.STEP)
    assert bus.active
    assert bus.wants(Level.STEP) and not bus.wants(Level.TOKEN)
    unsubscribe()
    unsubscribe()
    assert not bus.active and not bus.wants(Level.STAT)


def test_records_are_numbered_stamped_and_filtered_by_level() -> None:
    clock = Clock()
    bus = EventBus(clock)
    low: list[EventRecord] = []
    high: list[EventRecord] = []
    bus.subscribe(low.append)
    bus.subscribe(high.append, Level.TOKEN)
    bus.emit(warning())
    clock.now += 0.25
    for _ in range(7):
        bus.step += 1
    bus.emit(step_event())
    bus.emit(warning("b"))
    assert [(record.seq, record.t_us, record.step) for record in high] == [
        (0, 0, 0),
        (1, 250_000, 7),
        (2, 250_000, 7),
    ]
    assert [record.seq for record in low] == [0, 2]


def test_wire_form() -> None:
    event = RequestStateChanged("r/0", "waiting", "prefill", "admitted", blocked_by=("x", "y"))
    assert EventRecord(3, 17, 2, event).as_dict() == {
        "v": 1,
        "seq": 3,
        "t_us": 17,
        "step": 2,
        "ev": "req.state",
        "req": "r/0",
        "from": "waiting",
        "to": "prefill",
        "reason": "admitted",
        "blocked_by": ["x", "y"],
    }
    ops = EventRecord(0, 0, 0, BlockOps((("H", 1, "ab", None),), 1, 0, 0, 0)).as_dict()["ops"]
    assert ops == [["H", 1, "ab", None]]


def test_a_subscriber_that_raises_is_dropped_and_the_others_hear_of_it() -> None:
    bus = EventBus()
    heard: list[EventRecord] = []

    def poisoned(record: EventRecord) -> None:
        raise RuntimeError("poisoned")

    bus.subscribe(poisoned)
    bus.subscribe(heard.append)
    bus.emit(warning())
    bus.emit(warning("b"))
    codes = [record.event.code for record in heard if isinstance(record.event, Warn)]
    assert codes == ["a", "subscriber_failed", "b"]
    assert [record.seq for record in heard] == [0, 1, 2]


def test_subscribing_twice_is_refused() -> None:
    bus = EventBus()
    heard: list[EventRecord] = []

    def subscriber(record: EventRecord) -> None:
        heard.append(record)

    bus.subscribe(subscriber)
    with pytest.raises(ValueError, match="already"):
        bus.subscribe(subscriber)


def test_threads_may_come_and_go_while_events_are_emitted() -> None:
    bus = EventBus()
    heard: list[int] = []
    bus.subscribe(lambda record: heard.append(record.seq))

    def visit() -> None:
        for _ in range(200):
            bus.subscribe(lambda record: None)()
            bus.emit(warning())

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == list(range(800))
    assert bus.active


def test_the_written_schema_is_what_the_events_say() -> None:
    script = Path(__file__).parents[2] / "docs" / "write_event_schema.py"
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
