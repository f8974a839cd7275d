"""The events of plain decode steps that native code encodes are those that Python makes."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pellucid.engine import LLMEngine
from pellucid.engine.engine_events import Ceilings
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.observing.event_bus import Interest
from pellucid.observing.event_feed import EventFeed
from pellucid.observing.events import EventRecord, Gap, Hello, Level, Stat
from pellucid.observing.logged_events import Records, encode_batch, records_of
from support.checkpoints import write_checkpoint
from support.fake_model import FakeClock

# With one group of layers, with windows, and with recurrent states.
FAMILIES = ("llama", "gemma3", "lfm2")
NAMES = ("plain", 'quo"ted\\', "grüße/漢字", "tab\t\x1f\x7f", "😀")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    def load(family: str) -> LoadedModel:
        directory = write_checkpoint(tmp_path_factory.mktemp("models") / family, family)
        return load_model(EngineConfig(model=str(directory), backend="cpu"))

    return {family: load(family) for family in FAMILIES}


def advancing(clock: FakeClock, rng: random.Random, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, which takes some time on the clock."""

    def timed(*arguments: object) -> object:
        result = work(*arguments)
        clock.now += rng.choice([0.0, 4e-7, 0.0012345, 0.07])
        return result

    return timed


def look_at_some(engine: LLMEngine) -> None:
    """Tokens of every ninth step are observed, however long that takes."""
    bus = engine.events
    bus.may_observe = lambda now: bus.step % 9 == 5  # type: ignore[method-assign]
    bus._budget.reserve = lambda: True  # type: ignore[method-assign]


def drawn_engine(model: LoadedModel, rng: random.Random) -> tuple[LLMEngine, FakeClock]:
    """An engine, most often with few blocks, in which each part of a step takes its time."""
    clock = FakeClock()
    kv_cache_dtype = rng.choice(["bf16", "int8", "int4"])
    config = EngineConfig(
        block_size=32 if kv_cache_dtype == "int4" else 16,
        num_kv_blocks=rng.choice([32, 50, 400]),
        max_num_seqs=rng.choice([2, 5]),
        max_num_batched_tokens=rng.choice([16, 64]),
        max_model_len=192,
        kv_cache_dtype=kv_cache_dtype,
        speculation=rng.choice(["off", "off", "ngram"]),
        backend="cpu",
    )
    ceilings = rng.choice([None, Ceilings(1e9, 1e7), Ceilings(1e5, 1e12)])
    engine = LLMEngine(config, model, clock, ceilings=ceilings)
    look_at_some(engine)
    runner, scheduler = engine.model_runner, engine.scheduler
    runner.execute = advancing(clock, rng, runner.execute)  # type: ignore[method-assign]
    runner.sample = advancing(clock, rng, runner.sample)  # type: ignore[method-assign]
    scheduler.schedule = advancing(clock, rng, scheduler.schedule)  # type: ignore[method-assign]
    scheduler.update = advancing(clock, rng, scheduler.update)  # type: ignore[method-assign]
    return engine, clock


def work(engine: LLMEngine, clock: FakeClock, rng: random.Random) -> None:
    """Some requests, of which some come later, fork, or are aborted."""
    waiting = [f"{rng.choice(NAMES)}{number}" for number in range(6)]
    under_way: list[str] = []
    while waiting or engine.has_unfinished_requests:
        if waiting and (not under_way or rng.random() < 0.08):
            params = SamplingParams(
                max_tokens=rng.randrange(1, 60),
                temperature=rng.choice([0.0, 1.0]),
                seed=rng.randrange(9),
                n=rng.choice([1, 1, 3]),
                ignore_eos=True,
            )
            prompt = [rng.randrange(4, 20) for _ in range(rng.randrange(1, 70))]
            under_way.append(waiting.pop())
            engine.add_request(prompt, params, under_way[-1])
        elif rng.random() < 0.01:
            engine.abort(rng.choice(under_way))
        engine.step()
        clock.now += rng.choice([0.0, 0.0003])


def drawn_run(model: LoadedModel, seed: int, interest: Interest) -> list[Records]:
    """What one subscriber is told of a load."""
    rng = random.Random(seed)
    engine, clock = drawn_engine(model, rng)
    told: list[Records] = []
    engine.events.subscribe_lists(told.extend, interest)
    work(engine, clock, rng)
    engine.events.flush()
    return told


def comparable(batch: list[Records]) -> list[EventRecord]:
    """Without what is measured on another clock, or names the engine."""
    return [
        replace(record, event=replace(record.event, obs_frac=None))
        if isinstance(record.event, Stat)
        else record
        for record in records_of(batch)
        if not isinstance(record.event, Hello)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_log_of_steps_tells_what_a_subscriber_hears_at_once(
    family: str, models: dict[str, LoadedModel]
) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(10):
        level = (Level.TEXT, Level.STEP)[seed % 5 == 4]
        at_once = drawn_run(models[family], seed, Interest(level, None))
        later = drawn_run(models[family], seed, Interest(level, None, can_wait=True))
        assert comparable(later) == comparable(at_once), seed
        assert all(isinstance(each, EventRecord) for each in at_once)
        logged = [each for each in later if not isinstance(each, EventRecord)]
        for each in logged:
            records = records_of([each])
            assert each.json == msgspec.json.encode(records)[1:-1], seed
            assert (each.seq, each.last_seq) == (records[0].seq, records[-1].seq)
            kinds.update(record.event.ev for record in records)
        assert encode_batch(later) == msgspec.json.encode(records_of(later))
    assert min(kinds["tok.text"], kinds["kv"], kinds["step"]) > 300


def logging_engine(model: LoadedModel) -> tuple[LLMEngine, EventFeed]:
    engine = LLMEngine(EngineConfig(backend="cpu"), model, FakeClock())
    look_at_some(engine)
    return engine, EventFeed(engine.events, capacity=400)


def decode(engine: LLMEngine, num_tokens: int) -> None:
    engine.add_request([5], SamplingParams(max_tokens=num_tokens, ignore_eos=True), "r")
    while engine.has_unfinished_requests:
        engine.step()


def test_a_reader_goes_on_within_logged_events_and_gets_its_level(
    models: dict[str, LoadedModel],
) -> None:
    engine, feed = logging_engine(models["llama"])
    whole = feed.read(Level.TEXT)
    decode(engine, 40)
    batch = whole.take()
    assert any(not isinstance(each, EventRecord) for each in batch)
    records = records_of(batch)
    for known in records:
        reader = feed.read(Level.TEXT, known.seq)
        assert records_of(reader.take()) == records[records.index(known) + 1 :]
        reader.close()
    steps = feed.read(Level.STEP, records[0].seq)
    assert steps.take() == [each for each in records[1:] if each.event.level <= Level.STEP]
    one = feed.read(Level.TEXT, records[0].seq, ["nobody"])
    assert one.take() == [each for each in records[1:] if not each.event.ev.startswith("tok")]
    requests = feed.read(Level.STAT, records[0].seq)
    assert requests.take() == [each for each in records[1:] if each.event.level == Level.STAT]


def test_logged_events_are_forgotten_like_others_and_a_gap_says_so(
    models: dict[str, LoadedModel],
) -> None:
    engine, feed = logging_engine(models["llama"])
    reader, other = feed.read(Level.TEXT), feed.read(Level.TEXT)
    seen = records_of(reader.take())
    for _ in range(12):
        decode(engine, 40)
        other.take()
    gap, *rest = records_of(reader.take())
    assert isinstance(gap.event, Gap) and gap.event.from_seq == seen[-1].seq + 1
    assert gap.event.to_seq == rest[0].seq - 1
    assert [each.seq for each in rest] == [*range(rest[0].seq, engine.events.last_seq + 1)]
    assert 100 < len(rest) <= 400


def test_whoever_comes_or_wants_events_at_once_gets_all_of_a_step(
    models: dict[str, LoadedModel],
) -> None:
    """The tokens before are in the log when somebody joins who cannot wait, and the other way round."""
    engine, feed = logging_engine(models["llama"])
    reader = feed.read(Level.TEXT)
    engine.add_request([5], SamplingParams(max_tokens=60, ignore_eos=True), "r")
    heard: list[EventRecord] = []
    clock = engine.clock
    assert isinstance(clock, FakeClock)
    for turn in range(12):
        stop = engine.events.subscribe(heard.append, Level.TEXT) if turn % 2 else None
        for _ in range(4):
            engine.step()
            clock.now += 0.001
        if stop is not None:
            stop()
    told = [each for each in records_of(reader.take()) if not isinstance(each.event, Hello)]
    assert [each for each in told if each in heard] == [
        each for each in heard if not isinstance(each.event, Hello)
    ]
    events = [each.event for each in told]
    gaps = [event.itl_us for event in events if event.ev.startswith("tok")]  # type: ignore[attr-defined]
    assert gaps == [None, *[1000] * 47]
    assert Counter(event.ev for event in events)["step"] == 48
