"""Observing tokens takes a share of the time, whatever a token costs: counted work on a clock of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

import pellucid
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import EventRecord, Level, Token, TokenText
from pellucid.observing.observation_budget import SAVED_SECONDS, SHARE, ObservationBudget
from support.fake_model import fake_engine
from support.ticking_clock import TICK, TickingClock

SCHEMA = Path(pellucid.__file__).parent / "schema" / "events.v1.json"


def observed_frac(step: float, cost: float, batch: int, steps: int, others: float = 0.0) -> float:
    """The share of the time of steps of `batch` requests that observations take, beside `others` for other events
    of a step; seconds."""
    now = spent = 0.0
    budget = ObservationBudget(now)
    budget.pay(now, SHARE * SAVED_SECONDS)  # nothing is saved
    for _ in range(steps):
        now += step
        count = sum(budget.reserve() for _ in range(batch))
        now += count * cost + others
        budget.settle(count, count * cost)
        budget.pay(now, count * cost + others)
        spent += count * cost
    return spent / now


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize(
    ("step", "cost"),
    [(0.0004, 0.0002), (0.012, 0.0003), (0.025, 0.0005), (0.025, 0.0009)],
    ids=["5M", "135M", "0.5B", "a token above its share"],
)
def test_a_long_load_is_observed_within_its_share(batch: int, step: float, cost: float) -> None:
    frac = observed_frac(step, cost, batch, 3_000)
    assert frac <= SHARE < 0.03
    # Nearly all that is allowed, or each token.
    assert frac >= min(0.95 * SHARE, 0.99 * batch * cost / (step + batch * cost))


def test_other_events_are_paid_first() -> None:
    """Observations get what steps, blocks and texts leave of the share, which may be nothing."""
    step, cost, others = 0.004, 0.0002, 0.00004
    with_others = observed_frac(step, cost, 8, 6_000, others)
    assert 0.95 * SHARE <= with_others + others / step <= 1.05 * SHARE
    assert observed_frac(step, cost, 8, 6_000, 2 * SHARE * step) == 0


def test_a_short_text_on_an_idle_engine_is_observed_whole() -> None:
    budget = ObservationBudget(0.0)
    now = 0.0
    for _ in range(100):
        now += 0.0004
        assert budget.reserve()
        budget.settle(1, 0.0002)
        budget.pay(now, 0.0002)
    now += 2 * SAVED_SECONDS
    budget.pay(now, 0.0)
    allowed = sum(budget.reserve() for _ in range(1000))
    assert allowed == pytest.approx(SHARE * SAVED_SECONDS / 0.0002, abs=0.5)


def test_one_slow_observation_does_not_end_observing() -> None:
    budget = ObservationBudget(0.0)
    assert budget.reserve()
    budget.settle(1, 1.0)
    budget.pay(1.0, 1.0)
    budget.pay(1.0 + 0.9 * SAVED_SECONDS, 0.0)
    assert not budget.reserve()
    budget.pay(1.0 + 2 * SAVED_SECONDS, 0.0)
    assert budget.reserve()


def test_what_is_not_observed_is_still_told() -> None:
    """Each token is an event at level TEXT, with or without its choice; at level TOKEN each has its choice."""
    engine = fake_engine()
    engine.events.settle_observations(1, 10 * SAVED_SECONDS)
    texts: list[EventRecord] = []
    stop = engine.events.subscribe(texts.append, Level.TEXT, tokens_of=["mine"])
    first = engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=6), "mine")
    other = engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=6), "yours")
    while engine.has_unfinished_requests:
        engine.step()
    told = [record.event for record in texts if isinstance(record.event, Token | TokenText)]
    assert [event.id for event in told] == first.outputs[0].token_ids == other.outputs[0].token_ids
    assert {event.req for event in told} == {"mine/0"}
    assert all(isinstance(event, TokenText) for event in told)
    assert [event.pos for event in told] == [3, 4, 5, 6, 7, 8]
    schema = json.loads(SCHEMA.read_text())
    for record in texts:
        jsonschema.Draft202012Validator(schema["$defs"][record.event.ev]).validate(
            json.loads(json.dumps(record.as_dict()))
        )
    stop()
    everything: list[EventRecord] = []
    engine.events.subscribe(everything.append, Level.TOKEN)
    engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=6))
    while engine.has_unfinished_requests:
        engine.step()
    chosen = [record.event for record in everything if isinstance(record.event, Token | TokenText)]
    assert [event.id for event in chosen] == first.outputs[0].token_ids
    assert all(isinstance(event, Token) for event in chosen)


def test_the_budget_is_asked_once_for_each_token_and_told_its_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = fake_engine()
    asked: list[str] = []
    settled: list[tuple[int, float]] = []
    monkeypatch.setattr(engine.events, "observed", lambda ids: asked.extend(ids) or {*asked})
    monkeypatch.setattr(engine.events, "settle_observations", lambda *cost: settled.append(cost))
    monkeypatch.setattr("time.perf_counter", TickingClock())
    engine.events.subscribe(lambda record: None, Level.TEXT)
    output = engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=6), "mine")
    while engine.has_unfinished_requests:
        engine.step()
    assert asked == ["mine/0"] * len(output.outputs[0].token_ids)
    assert settled == [(1, TICK)] * len(asked)


def test_making_events_counts_as_well() -> None:
    times = iter(range(100))
    bus = EventBus(lambda: float(next(times)))
    bus.subscribe(lambda record: None, Level.TEXT)
    token = TokenText("r/0", 1, 2, "a", "target")

    def made() -> Iterator[TokenText]:
        for _ in range(2):
            next(times)  # a second for making it
            yield token

    bus.emit_made(None, made)
    assert bus.take_spent() == 3
