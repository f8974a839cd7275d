"""Events of the engine: complete, correct, and not created without a subscriber."""

import json
import platform
import random
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import pellucid
from pellucid.engine import LLMEngine
from pellucid.engine.engine_events import Ceilings
from pellucid.engine.token_events import token_source
from pellucid.execution import sampler
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import (
    EventRecord,
    Hello,
    Level,
    Percentiles,
    RequestAdded,
    RequestLedger,
    Stat,
    Step,
    Token,
    to_us,
)
from pellucid.observing.ledger import Part
from support.fake_model import FakeTokenizer, fake_engine, fake_logits

SCHEMA = Path(pellucid.__file__).parent / "schema" / "events.v1.json"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def listen(engine: LLMEngine, level: Level = Level.TOKEN) -> list[EventRecord]:
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, level)
    return records


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()


def of_type(records: list[EventRecord], kind: type[Any]) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, kind)]


def crowded_engine() -> LLMEngine:
    return fake_engine(
        block_size=16,
        num_kv_blocks=16,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        speculation="ngram",
    )


def add_many(engine: LLMEngine, count: int) -> None:
    rng = random.Random(3)
    for _ in range(count):
        prompt = [rng.randrange(1, 6) for _ in range(rng.randrange(1, 60))]
        params = SamplingParams(
            max_tokens=rng.randrange(1, 60),
            n=rng.choice([1, 1, 2]),
            top_k=rng.choice([0, 5]),
            temperature=rng.choice([0, 1.0]),
            seed=1,
        )
        engine.add_request(prompt, params)


def test_nothing_is_kept_for_subscribers_that_there_are_not() -> None:
    engine = crowded_engine()
    last = engine.events.last_seq
    for number in range(8):
        engine.add_request([number + 1] * 60, GREEDY)
    add_many(engine, 20)
    run(engine)
    assert engine.events.last_seq == last
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.index._num_evicted and pool.log.take() == ((), ())


def test_a_recording_is_gapless_and_valid() -> None:
    engine = crowded_engine()
    records = listen(engine)
    add_many(engine, 12)
    engine.step()
    engine.clock.now += 1.0
    engine.abort("request-3")
    snapshot = EventRecord(engine.events.last_seq, 0, 0, engine.snapshot())
    run(engine)
    assert [record.seq for record in records] == list(range(len(records)))
    assert isinstance(records[0].event, Hello)
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    kinds = validator.schema["$defs"]
    # By its own definition: a failure then says what is wrong, not that nothing fits.
    by_kind = {ev: jsonschema.Draft202012Validator(kind) for ev, kind in kinds.items()}
    seen = set()
    for record in (*records, snapshot):
        line = json.loads(json.dumps(record.as_dict(), allow_nan=False))
        by_kind[line["ev"]].validate(line)
        assert line.keys() <= kinds[line["ev"]]["properties"].keys()
        seen.add(line["ev"])
    validator.validate(records[0].as_dict())
    numbers = {event.req: event.num for event in of_type(records, RequestAdded)}
    assert list(numbers.values()) == list(range(1, len(numbers) + 1))
    assert {each.req: each.num for each in snapshot.event.requests}.items() <= numbers.items()
    # All but what has not happened: nothing was loaded, nothing is wrong, nobody is slow, and the model has no
    # recurrent states, and each choice was observed.
    assert seen == kinds.keys() - {"load", "warn", "gap", "states", "tok.text"}


def test_steps_account_for_every_token_and_operation() -> None:
    engine = crowded_engine()
    records = listen(engine, Level.STEP)
    outputs = [engine.add_request([index] * 20, GREEDY) for index in range(1, 12)]
    run(engine)
    steps: list[Step] = of_type(records, Step)
    assert not of_type(records, Token)
    processed: dict[str, int] = {}
    for step in steps:
        assert sum(num for _, num, _ in step.batch) <= step.budget_tok == 24
        for name, num, _ in step.batch:
            processed[name] = processed.get(name, 0) + num
    assert processed == {
        f"{output.request_id}/0": output.metrics.num_processed_tokens for output in outputs
    }
    assert sum(step.flops for step in steps) == sum(output.metrics.flops for output in outputs)
    assert {step.kind for step in steps} == {"prefill", "mixed", "decode"}
    assert [record.step for record in records if isinstance(record.event, Step)] == list(
        range(1, len(steps) + 1)
    )


def test_bytes_and_bound_of_a_step() -> None:
    engine = fake_engine(max_num_seqs=2)
    records = listen(engine, Level.STEP)
    engine.add_request([1] * 10, GREEDY)
    engine.step()
    engine.step()
    first, second = of_type(records, Step)
    position = engine.memory_plan.bytes_per_block / engine.config.block_size
    assert (first.kv_read_bytes, first.kv_write_bytes) == (0, 10 * position)
    assert (second.kv_read_bytes, second.kv_write_bytes) == (10 * position, position)
    assert first.w_bytes == second.w_bytes > 0
    assert first.bound is first.pred_us is None


@pytest.mark.parametrize("bound", ["memory", "compute"])
def test_the_time_of_a_step_is_predicted_by_what_bounds_it(bound: str) -> None:
    slow, fast = 1000.0, 1e30  # bytes or operations in a second
    ceilings = Ceilings(slow, fast) if bound == "memory" else Ceilings(fast, slow)
    engine = fake_engine(ceilings=ceilings)
    records = listen(engine, Level.STEP)
    engine.add_request([1] * 10, GREEDY)
    engine.step()
    engine.step()
    for step in of_type(records, Step):
        num_bytes = step.w_bytes + step.kv_read_bytes + step.kv_write_bytes
        work = num_bytes if bound == "memory" else step.flops
        assert (step.bound, step.pred_us) == (bound, to_us(work / slow))


def test_every_token_comes_with_the_logits_that_it_was_chosen_from() -> None:
    engine = crowded_engine()
    records = listen(engine)
    prompts = {f"r{index}": [index + 1] * (7 * index + 3) for index in range(5)}
    params = SamplingParams(temperature=0.7, top_k=9, seed=3, max_tokens=30, ignore_eos=True)
    outputs = {name: engine.add_request(prompt, params, name) for name, prompt in prompts.items()}
    run(engine)
    tokens: list[Token] = of_type(records, Token)
    for name, output in outputs.items():
        own = [token for token in tokens if token.req == f"{name}/0"]
        assert [token.id for token in own] == output.outputs[0].token_ids
        for index, token in enumerate(own):
            assert token.pos == len(prompts[name]) + index
            seen = prompts[name] + output.outputs[0].token_ids[:index]
            logits = np.array(fake_logits(seen), np.float32).astype(np.float64)
            model = np.exp(logits) / np.exp(logits).sum()
            best = np.argsort(-logits)[: len(token.cand)].tolist()
            assert [token_id for token_id, *_ in token.cand] == best
            for token_id, text, lp, _ in token.cand:
                assert text == FakeTokenizer.alphabet[token_id]
                assert np.isclose(lp, np.log(model[token_id]), rtol=1e-9)
            assert np.isclose(token.rest_frac, 1 - model[best].sum(), atol=1e-12)
            assert sum(p_final > 0 for *_, p_final in token.cand) == 9
            assert [stage for stage, _, _ in token.funnel] == ["logits", "temperature", "top_k"]
            assert (token.itl_us is None) == (index == 0)


def test_stat_has_the_times_of_tokens_and_the_cost_of_events() -> None:
    engine = fake_engine(max_num_seqs=2)
    records = listen(engine, Level.STAT)
    for name in ("first", "second"):
        engine.add_request([1] * 10, GREEDY, name)
    while engine.has_unfinished_requests:
        engine.clock.now += 0.1
        engine.step()
    stats = of_type(records, Stat)
    # The clock stands still within a step, so events cost nothing on it.
    assert stats and all(stat.obs_frac == 0 for stat in stats)
    times = [stat.ttft_us for stat in stats if stat.ttft_us is not None]
    assert times == [Percentiles(100_000, 100_000, 100_000)]
    assert {stat.itl_us for stat in stats} == {Percentiles(100_000, 100_000, 100_000)}

    engine = fake_engine()
    records = listen(engine, Level.STAT)
    engine.add_request([1] * 10, SamplingParams(max_tokens=101, ignore_eos=True))
    for number in range(101):
        engine.step()
        engine.clock.now += number / 16384
        engine.events.spend(1.0)  # more than there is
    (stat,) = of_type(records, Stat)
    assert stat.itl_us == Percentiles(*(round(n / 16384 * 1e6) for n in (49, 94, 98)))
    assert stat.obs_frac == 1.0

    engine = fake_engine()
    engine.events.subscribe(
        lambda record: setattr(engine.clock, "now", engine.clock.now + 0.3), Level.TOKEN
    )
    records = listen(engine, Level.STAT)
    engine.add_request([1] * 10, GREEDY)
    run(engine)
    assert of_type(records, Stat)[-1].obs_frac == pytest.approx(1)


def test_a_snapshot_has_all_that_a_latecomer_has_missed() -> None:
    engine = fake_engine(max_num_seqs=1)
    params = SamplingParams(temperature=0.5, seed=9, max_tokens=30, ignore_eos=True)
    outputs = [engine.add_request([1, 2, index], params, f"r{index}") for index in (3, 4)]
    for _ in range(4):
        engine.step()
    plain, full = engine.snapshot(), engine.snapshot(with_tokens=True)
    assert [request.prompt_ids for request in plain.requests] == [None, None]
    for request, output in zip(full.requests, outputs, strict=True):
        assert request.prompt_ids == tuple(output.prompt_token_ids)
        assert request.output_ids == tuple(output.outputs[0].token_ids)
        assert request.max_new_tok == 30
        assert (request.params.temp, request.params.seed) == (0.5, 9)


def test_a_token_says_whether_a_draft_gave_it() -> None:
    assert token_source(0, 3, 2) == token_source(1, 3, 2) == "draft"
    assert token_source(2, 3, 2) == "bonus"
    assert token_source(1, 2, 2) == token_source(0, 1, 0) == token_source(0, 1, 3) == "target"


def test_watching_changes_no_answer() -> None:
    answers = []
    for watched in (False, True):
        engine = crowded_engine()
        if watched:
            listen(engine)
        params = SamplingParams(seed=5, max_tokens=40, logprobs=3)
        outputs = [engine.add_request([index] * 30, params) for index in range(1, 9)]
        run(engine)
        answers.append([output.outputs[0] for output in outputs])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("level", [None, Level.STAT, Level.STEP])
def test_candidates_are_made_for_listeners_to_tokens_only(
    level: Level | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("nobody wants it")

    monkeypatch.setattr(sampler, "observe_token", fail)
    engine = fake_engine()
    records = [] if level is None else listen(engine, level)
    output = engine.add_request([1, 2, 3], GREEDY)
    run(engine)
    assert output.outputs[0].finish_reason == "length"
    assert not of_type(records, Token)
    assert len(of_type(records, Step)) == (12 if level is Level.STEP else 0)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("use_kv_cache", [True, False])
def test_an_engine_describes_itself(caching: bool, use_kv_cache: bool) -> None:
    knobs = {"use_kv_cache": use_kv_cache, "enable_prefix_caching": caching, "num_threads": 3}
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 9, "block_size": 16, "num_kv_blocks": 40}
    (hello,) = of_type(listen(fake_engine(speculation="ngram", **knobs, **sizes)), Hello)
    assert (hello.use_kv_cache, hello.prefix_caching) == (use_kv_cache, caching and use_kv_cache)
    assert (hello.kv.block_tok, hello.kv.n_blocks, hello.kv.block_bytes) == (16, 40, 16)
    assert (hello.limits.max_seqs, hello.limits.max_batched_tok, hello.speculation) == (
        4,
        9,
        "ngram",
    )
    assert (hello.device.name, hello.device.threads) == (platform.machine(), 3)
    assert abs(hello.t0_unix_us / 1e6 - time.time()) < 60


def test_tokens_of_some_requests_only() -> None:
    engine = fake_engine()
    records: list[EventRecord] = []
    unsubscribe = engine.events.subscribe(records.append, Level.TOKEN, tokens_of=["mine/0"])
    everything = listen(engine, Level.STEP)
    for name in ("mine", "yours"):
        engine.add_request([1, 2, 3], GREEDY, name)
    run(engine)
    assert [token.req for token in of_type(records, Token)] == ["mine/0"] * 12
    assert len(of_type(records, Step)) == len(of_type(everything, Step))
    assert not of_type(everything, Token)
    assert not engine.events.watches("yours/0")
    listen(engine)
    assert engine.events.watches("yours/0")
    unsubscribe()
    assert engine.events.watches("mine/0")


def test_ledgers_in_microseconds_add_up_too() -> None:
    engine = crowded_engine()
    records = listen(engine, Level.STAT)
    add_many(engine, 20)
    run(engine)
    added = [event.req for event in of_type(records, RequestAdded)]
    ledgers: list[RequestLedger] = of_type(records, RequestLedger)
    assert sorted(event.req for event in ledgers) == sorted(added)
    for event in ledgers:
        parts = {
            name: value
            for name, value in event.fields_as_dict().items()
            if name.endswith("_us") and name != "total_us"
        }
        assert len(parts) == len(Part)
        assert sum(parts.values()) == event.total_us


def test_a_subscriber_that_comes_late_is_told_what_engine_this_is() -> None:
    engine = fake_engine()
    early = listen(engine)
    engine.add_request([1, 2, 3], GREEDY)
    engine.step()
    late = listen(engine)
    run(engine)
    assert isinstance(late[0].event, Hello)
    assert late[0].event == early[0].event
    assert [record.seq for record in early] == list(range(len(early)))
    assert late == early[-len(late) :]
