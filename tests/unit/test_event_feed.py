"""EventFeed: readers learn which events they missed, and events continue a snapshot."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import MAX_PENDING, EventBus
from pellucid.observing.event_feed import MAX_TAKEN, EventFeed
from pellucid.observing.events import (
    BlockOps,
    Event,
    EventRecord,
    Gap,
    Hello,
    Level,
    RequestStateChanged,
    Snapshot,
    Stat,
    Warn,
)
from pellucid.observing.logged_events import records_of
from support.fake_model import FakeClock, fake_engine


def emit(bus: EventBus, count: int) -> None:
    for number in range(count):
        bus.emit(Warn(str(number), "something"))


def codes(records: list[EventRecord]) -> list[str]:
    return [r.event.code if isinstance(r.event, Warn) else r.event.ev for r in records]


def test_each_reader_takes_what_came_since_it_came() -> None:
    bus = EventBus()
    feed = EventFeed(bus, capacity=10)
    first = feed.read()
    emit(bus, 2)
    second = feed.read()
    emit(bus, 1)
    assert codes(first.take()) == ["0", "1", "0"]
    assert codes(second.take()) == ["0"]
    assert first.take() == second.take() == []
    emit(bus, 1)
    assert codes(second.take()) == ["0"]


def test_who_is_too_slow_hears_of_the_gap() -> None:
    bus = EventBus()
    reader = EventFeed(bus, capacity=4).read()
    emit(bus, 1)
    assert [record.seq for record in reader.take()] == [0]
    emit(bus, 9)
    records = reader.take()
    assert records[0].event == Gap(from_seq=1, to_seq=5, resync=True)
    assert [record.seq for record in records] == [5, 6, 7, 8, 9]
    emit(bus, 1)
    assert [record.seq for record in reader.take()] == [10]


def test_reading_is_resumed_where_it_was_left() -> None:
    bus = EventBus()
    feed = EventFeed(bus, capacity=6)
    feed.read()  # somebody else, so that the feed goes on
    emit(bus, 10)
    assert [record.seq for record in feed.read(after_seq=7).take()] == [8, 9]
    assert [record.seq for record in feed.read(after_seq=3).take()] == [4, 5, 6, 7, 8, 9]
    late = feed.read(after_seq=1).take()
    assert late[0].event == Gap(from_seq=2, to_seq=3, resync=True)
    assert feed.read(after_seq=9).take() == []


def test_nobody_listened_meanwhile() -> None:
    bus = EventBus()
    feed = EventFeed(bus)
    reader = feed.read()
    emit(bus, 1)
    assert [record.seq for record in reader.take()] == [0]
    reader.close()
    assert not bus.active
    bus.subscribe(lambda record: None)
    emit(bus, 3)
    again = feed.read(after_seq=0)
    emit(bus, 1)
    assert again.take()[0].event == Gap(from_seq=1, to_seq=3, resync=True)


def test_levels_are_those_of_each_reader() -> None:
    bus = EventBus()
    feed = EventFeed(bus)
    low = feed.read(Level.STAT)
    assert not bus.wants(Level.STEP)
    high = feed.read(Level.STEP)
    assert bus.wants(Level.STEP)
    bus.emit(BlockOps((), used=0, cached=0, free=0, waste_tok=0))
    emit(bus, 1)
    assert codes(low.take()) == ["0"]
    assert codes(high.take()) == ["kv", "0"]
    high.close()
    high.close()
    assert not bus.wants(Level.STEP) and bus.active
    low.close()
    assert not bus.active


def test_a_reader_takes_a_bounded_number_at_once() -> None:
    bus = EventBus()
    reader = EventFeed(bus).read()
    emit(bus, MAX_TAKEN + 5)
    assert [len(reader.take()) for _ in range(3)] == [MAX_TAKEN, 5, 0]


def step_events(made: list[int], count: int) -> Iterator[Event]:
    """Events of steps that note when they are made."""
    for number in range(count):
        made.append(number)
        yield BlockOps((), used=number, cached=0, free=0, waste_tok=0)


def test_events_of_steps_are_made_for_their_reader_and_stay_in_order() -> None:
    bus, made = EventBus(), list[int]()
    feed = EventFeed(bus)
    reader = feed.read(Level.STEP)
    bus.step = 1
    bus.emit_made(None, step_events, made, 2)
    bus.step = 2
    bus.emit_made(None, step_events, made, 1)
    assert made == []
    assert [(each.seq, each.step, each.event.ev) for each in reader.take()] == [
        (0, 1, "kv"),
        (1, 1, "kv"),
        (2, 2, "kv"),
    ]
    bus.emit_made(None, step_events, made, 1)
    emit(bus, 1)  # of a request, at once: what was before comes first
    assert made == [0, 1, 0, 0]
    assert codes(reader.take()) == ["kv", "0"]
    bus.emit_made(None, step_events, made, 1)
    assert bus.last_seq == 5 and len(made) == 5


def test_events_of_steps_wait_for_nobody_who_wants_them_at_once_nor_for_a_reader_that_stops() -> (
    None
):
    bus, made = EventBus(), list[int]()
    feed = EventFeed(bus)
    reader = feed.read(Level.STEP)
    stop = bus.subscribe(lambda record: None, Level.STAT)  # of requests: steps may wait
    bus.emit_made(None, step_events, made, 1)
    assert made == []
    stop_steps = bus.subscribe(lambda record: None, Level.STEP)
    assert made == [0]
    bus.emit_made(None, step_events, made, 1)
    assert made == [0, 0]
    stop_steps()
    for _ in range(MAX_PENDING - 1):
        bus.emit_made(None, step_events, made, 1)
    assert len(made) == 2
    bus.emit_made(None, step_events, made, 1)
    assert len(made) == 2 + MAX_PENDING
    bus.emit_made(None, step_events, made, 1)
    reader.close()
    assert len(made) == 3 + MAX_PENDING
    stop()


def test_what_steps_emit_does_not_pile_up_for_a_reader_that_stopped() -> None:
    engine = fake_engine(context_length=4096, num_kv_blocks=300)
    bus, most = engine.events, 0
    EventFeed(bus).read(Level.STEP)
    params = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)
    output = engine.add_request([1], params)
    while not output.finished:
        engine.step()
        most = max(most, len(bus._pending))
    assert MAX_PENDING / 2 < most < MAX_PENDING + 3 + engine.config.block_size


def test_a_snapshot_continues_with_events_that_another_thread_hands_out() -> None:
    bus = EventBus()
    reader = EventFeed(bus).read(Level.STEP)
    entered, leave, last = threading.Event(), threading.Event(), list[int]()

    def made() -> Iterator[Event]:
        entered.set()
        leave.wait()
        yield from step_events([], 1)

    bus.emit_made(None, made)
    taking = threading.Thread(target=reader.take)
    looking = threading.Thread(target=lambda: last.append(bus.last_seq))
    taking.start()
    entered.wait()
    looking.start()
    looking.join(0.05)  # it waits
    leave.set()
    taking.join()
    looking.join()
    assert last == [0]


def test_a_reader_rests_between_batches_however_short_steps_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus, rests = EventBus(), list[float]()

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        emit(bus, 2)

    async def read() -> list[list[str]]:
        reader, batches = EventFeed(bus).read(), list[list[str]]()
        emit(bus, 1)
        async for records in reader.batches(poll_seconds=0.25):
            batches.append(codes(records))
            emit(bus, 1)  # a step has ended meanwhile
            if len(batches) == 3:
                break
        return batches

    monkeypatch.setattr(asyncio, "sleep", rest)
    assert [len(batch) for batch in asyncio.run(read())] == [1, 3, 3]
    assert rests == [0.25, 0.25]


# ---- the engine


def run(engine: LLMEngine, clock: FakeClock, seconds: float = 0.1) -> None:
    while engine.has_unfinished_requests:
        engine.step()
        clock.now += seconds


def test_every_reader_is_told_what_engine_this_is() -> None:
    feed = EventFeed(fake_engine().events)
    assert codes(feed.read().take()) == ["hello"]
    assert codes(feed.read().take()) == ["hello"]


def test_how_the_engine_does_twice_a_second() -> None:
    clock = FakeClock()
    engine = fake_engine(clock=clock, block_size=16)
    reader = EventFeed(engine.events).read()
    params = SamplingParams(max_tokens=21, ignore_eos=True)
    engine.add_request([1] * 40, params)
    run(engine, clock)
    engine.add_request([1] * 40, params)
    run(engine, clock)
    stats = [record.event for record in reader.take() if isinstance(record.event, Stat)]
    assert len(stats) >= 8
    assert all(stat.dur_us >= 500_000 for stat in stats if stat.running)
    seconds = [stat.dur_us / 1e6 for stat in stats]
    pairs = list(zip(stats, seconds, strict=True))
    assert round(sum(stat.out_tok_s * own for stat, own in pairs)) == 42
    assert round(sum(stat.in_tok_s * own for stat, own in pairs)) == 40 + 8
    assert [stat.hit_frac for stat in stats if stat.hit_frac is not None] == [0.0, 32 / 40]
    assert (stats[-1].running, stats[-1].waiting, stats[-1].used) == (0, 0, 0)


class Mirror:
    """Requests and blocks as a page believes them to be: a snapshot, and the events after it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.seq = snapshot.as_of_seq
        self.states = {request.req: request.state for request in snapshot.requests}
        self.owners = Counter({block: owners for block, owners, _ in snapshot.blocks})

    def follow(self, record: EventRecord) -> None:
        if record.seq <= self.seq:
            return
        match record.event:
            case RequestStateChanged(req=req, to=state):
                self.states[req] = state
                if state in ("done", "cancelled", "failed"):
                    del self.states[req]
            case BlockOps(ops=ops):
                for op, block, a, b in ops:
                    if op in "AC":
                        self.owners[block] = 1
                    elif op in "SR":
                        self.owners[block] = b if op == "S" else a


def test_a_reader_that_waits_gets_what_a_subscriber_gets() -> None:
    """Numbers, times and contents, though one gets the events of a step within it and the other much later."""

    def work(engine: LLMEngine, clock: FakeClock) -> None:
        for length in (40, 7):
            params = SamplingParams(max_tokens=9, temperature=0.8, seed=1, ignore_eos=True)
            engine.add_request([1] * length, params, f"r{length}")
            run(engine, clock, 0.01)

    def made(clock: FakeClock) -> LLMEngine:
        return fake_engine(clock=clock, block_size=16)

    at_once: list[EventRecord] = []
    clock = FakeClock()
    engine = made(clock)
    engine.events.subscribe(at_once.append, Level.TOKEN)
    work(engine, clock)
    later_clock = FakeClock()
    later = made(later_clock)
    reader = EventFeed(later.events).read(Level.TOKEN)
    work(later, later_clock)
    told, told_later = (
        [record for record in records if not isinstance(record.event, Hello | Stat)]
        for records in (at_once, records_of(reader.take()))
    )  # a hello has the engine's name; of stat, obs_frac is measured
    assert told_later == told
    assert {record.event.ev for record in told} >= {"step", "kv", "tok", "req.ledger"}


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_and_the_events_after_it_are_the_engine(seed: int) -> None:
    rng, clock = random.Random(seed), FakeClock()
    engine = fake_engine(
        clock=clock,
        block_size=16,
        max_model_len=96,
        num_kv_blocks=rng.choice([6, 9, 30]),
        max_num_seqs=rng.choice([2, 8]),
        max_num_batched_tokens=rng.choice([8, 64]),
    )
    feed = EventFeed(engine.events)
    mirrors: list[tuple[Mirror, object]] = []
    arriving, running = 12, []
    while arriving or engine.has_unfinished_requests:
        if arriving and rng.random() < 0.5:
            arriving -= 1
            params = SamplingParams(
                n=rng.choice([1, 1, 3]), max_tokens=rng.randrange(1, 20), ignore_eos=True
            )
            prompt = [1] * rng.randrange(1, 60)
            running.append(engine.add_request(prompt, params, priority=rng.choice([0, -1])))
        if rng.random() < 0.2:  # somebody comes late
            reader = feed.read(Level.STEP)
            mirrors.append((Mirror(engine.snapshot()), reader))
        if running and rng.random() < 0.1:
            engine.abort(running.pop().request_id)
        engine.step()
        clock.now += 1.0
        truth = engine.snapshot()
        for mirror, reader in mirrors:
            for record in reader.take():
                mirror.follow(record)
            told = {name: state for name, state in mirror.states.items() if state != "waiting"}
            assert told == {r.req: r.state for r in truth.requests if r.state != "waiting"}
            owners = {block: own for block, own, _ in truth.blocks if own}
            assert {block: own for block, own in mirror.owners.items() if own} == owners
    assert mirrors
