"""Beam search through the engine with the fake model: the same result however it is scheduled."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from pellucid.backends.ops import ForwardBatch, HostArray
from pellucid.engine import LLMEngine
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.llm import LLM
from pellucid.observing.events import EventRecord, Level, RequestStateChanged
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.scheduling.admission import AdmissionPlan
from pellucid.scheduling.offload import BrokenPlanError
from pellucid.scheduling.prefix_index import PrefixMatch
from support.beam_search_reference import Logprobs, reference_beam_search
from support.fake_model import EOS, FakeKVCache, FakeTokenizer, fake_engine, fake_logits
from support.refusals import check_refusals

PROMPT = "once upon a time there was a king"
PARAMS = BeamSearchParams(beam_width=4, max_tokens=12)
Found = list[tuple[list[int], float | None, float | None, str | None, int | str | None]]


def finish(engine: LLMEngine) -> list[CompletionDelta]:
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
        engine.scheduler.check_integrity()
    return deltas


def found(output: RequestOutput) -> Found:
    return [
        (one.token_ids, one.score, one.cumulative_logprob, one.finish_reason, one.stop_reason)
        for one in output.outputs
    ]


def alone(prompt: str, params: BeamSearchParams) -> Found:
    engine = fake_engine()
    output = engine.add_request(prompt, params)
    finish(engine)
    return found(output)


def model(prompt: str) -> Callable[[tuple[int, ...]], Logprobs]:
    """The fake model as a table: log-probabilities after each output."""
    prompt_token_ids = FakeTokenizer().encode(prompt)

    def logprobs(token_ids: tuple[int, ...]) -> Logprobs:
        logits = np.array(fake_logits([*prompt_token_ids, *token_ids]), np.float32)
        exact = logits.astype(np.float64)
        return exact - np.log(np.exp(exact).sum())

    return logprobs


@pytest.mark.parametrize("seed", range(12))
def test_the_engine_finds_what_the_definition_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = BeamSearchParams(
        beam_width=int(rng.integers(1, 9)),
        length_penalty=float(rng.choice([-1, 0, 1, 2])),
        early_stopping=(True, False, "never")[seed % 3],
        stop_token_ids=rng.integers(0, 32, 2).tolist(),
        max_tokens=int(rng.integers(1, 16)),
    )
    stops = frozenset({EOS, *params.stop_token_ids})
    expected = reference_beam_search(model(PROMPT), params, params.max_tokens or 0, stops)
    ours = [(tuple(token_ids), score) for token_ids, score, *_ in alone(PROMPT, params)]
    assert [token_ids for token_ids, _ in ours] == [token_ids for token_ids, _ in expected]
    assert [score for _, score in ours] == pytest.approx([score for _, score in expected])


def test_a_result_has_all_that_is_known_of_it() -> None:
    engine = fake_engine()
    output = engine.add_request(PROMPT, dataclasses.replace(PARAMS, n=2, stop_token_ids=[5]))
    deltas = finish(engine)
    logprobs = model(PROMPT)
    assert len(output.outputs) == 2 and output.finished
    for index, one in enumerate(output.outputs):
        own = [logprobs(tuple(one.token_ids[:i]))[t] for i, t in enumerate(one.token_ids)]
        assert one.index == index
        assert one.cumulative_logprob == pytest.approx(sum(own))
        assert one.score == pytest.approx(sum(own) / len(own))
        assert one.finish_reason == ("stop" if one.token_ids[-1] in (EOS, 5) else "length")
        shown = one.token_ids[:-1] if one.finish_reason == "stop" else one.token_ids
        assert one.text == FakeTokenizer().decode(shown)
    scores = [one.score or 0 for one in output.outputs]
    assert scores == sorted(scores, reverse=True)
    # Nothing before the end, and all of it then.
    assert [
        (delta.index, delta.text, delta.token_ids, delta.finish_reason) for delta in deltas
    ] == [(one.index, one.text, one.token_ids, one.finish_reason) for one in output.outputs]
    assert output.metrics.time_to_first_token is not None


def test_events_say_that_each_beam_decodes() -> None:
    """Also those that got another beam's text."""
    engine, states = fake_engine(), dict[str, list[str]]()

    def note(record: EventRecord) -> None:
        if isinstance(record.event, RequestStateChanged):
            states.setdefault(record.event.req, []).append(record.event.to)

    engine.events.subscribe(note, Level.STAT)
    engine.add_request(PROMPT, PARAMS)
    finish(engine)
    assert len(states) == PARAMS.beam_width and all("decode" in each for each in states.values())


def test_the_prompt_is_computed_and_stored_once() -> None:
    engine = fake_engine(block_size=16)
    prompt = "a" * 100
    output = engine.add_request(prompt, BeamSearchParams(beam_width=8, max_tokens=4))
    engine.step()
    engine.step()
    pool = engine.scheduler.kv_cache_manager.block_pool
    # Six full blocks together, and copies of the seventh for beams that have written into it.
    assert 6 < pool.num_blocks - pool.num_free_blocks <= 6 + 8
    finish(engine)
    assert output.metrics.num_processed_tokens == 100 + 3 * 8


def test_it_lasts_no_longer_than_it_has_to() -> None:
    """Two searches of which each holds half of the seats do not wait for each other for ever."""
    engine = fake_engine(max_num_seqs=6)
    outputs = [engine.add_request(f"{letter} dog", PARAMS) for letter in "abcd"]
    finish(engine)
    assert [found(output) for output in outputs] == [
        alone(f"{letter} dog", PARAMS) for letter in "abcd"
    ]


def test_abort_ends_the_whole_search() -> None:
    for num_steps in range(6):
        engine = fake_engine(max_num_batched_tokens=20)
        output = engine.add_request(PROMPT, dataclasses.replace(PARAMS, n=2))
        other = engine.add_request("a cat", PARAMS)
        for _ in range(num_steps):
            engine.step()
        deltas = engine.abort(output.request_id)
        engine.scheduler.check_integrity()
        assert [(delta.index, delta.finish_reason) for delta in deltas] == [
            (0, "abort"),
            (1, "abort"),
        ]
        assert output.finished and [one.token_ids for one in output.outputs] == [[], []]
        finish(engine)
        assert found(other) == alone("a cat", PARAMS)


def test_a_failing_row_ends_its_search_alone() -> None:
    engine = fake_engine()
    output = engine.add_request(
        PROMPT, dataclasses.replace(PARAMS, allowed_token_ids=[3, 4], bad_words=["cd", "dc", "c"])
    )
    other = engine.add_request("a cat", PARAMS)
    failing = engine.add_request("a dog", PARAMS)
    forward = engine.model_runner.decoder.forward

    def forward_with_nan(batch: ForwardBatch, kv_cache: FakeKVCache) -> HostArray:
        logits = forward(batch, kv_cache)
        owners = np.searchsorted(batch.query_start, batch.logits_indices, side="right") - 1
        for row, owner in zip(logits, owners.tolist(), strict=True):
            if kv_cache.read(batch.block_tables[0, owner], 5).tolist() == failing.prompt_token_ids:
                row[3] = np.nan
        return logits

    engine.model_runner.decoder.forward = forward_with_nan
    finish(engine)
    assert all(one.finish_reason == "length" for one in output.outputs)
    assert {one.finish_reason for one in failing.outputs} == {"error"}
    assert "logits" in str(failing.outputs[0].stop_reason)
    assert found(other) == alone("a cat", PARAMS)


def test_a_failing_step_ends_the_searches_in_it() -> None:
    for num_steps in range(4):
        engine = fake_engine(max_num_batched_tokens=20)
        output = engine.add_request(PROMPT, PARAMS)
        for _ in range(num_steps):
            engine.step()
        forward = engine.model_runner.decoder.forward
        engine.model_runner.decoder.forward = lambda *_: 1 // 0
        engine.step()
        engine.model_runner.decoder.forward = forward
        assert {one.finish_reason for one in output.outputs} == {"error"}
        assert not engine.has_unfinished_requests
        again = engine.add_request(PROMPT, PARAMS)
        finish(engine)
        assert found(again) == alone(PROMPT, PARAMS)


def test_fewer_results_if_masks_leave_fewer() -> None:
    engine = fake_engine()
    output = engine.add_request(PROMPT, dataclasses.replace(PARAMS, allowed_token_ids=[3]))
    finish(engine)
    (one,) = output.outputs
    assert one.token_ids == [3] * 12 and one.finish_reason == "length"
    # The second step has two candidates a beam: the search widens as it goes.
    output = engine.add_request(
        PROMPT, dataclasses.replace(PARAMS, allowed_token_ids=[3, 4], beam_width=8, max_tokens=2)
    )
    finish(engine)
    assert len(output.outputs) == 4


def test_the_context_ends_a_search_too() -> None:
    engine = fake_engine(max_model_len=len(PROMPT) + 3)
    output = engine.add_request(PROMPT, dataclasses.replace(PARAMS, ignore_eos=True))
    finish(engine)
    assert {one.stop_reason for one in output.outputs} == {"context_length"}
    assert math.isfinite(output.outputs[0].score or math.nan)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr(LLMEngine, "from_config", lambda *_: fake_engine())
    return LLM()


def test_llm_beam_search(llm: LLM) -> None:
    assert found(llm.beam_search("a cat", PARAMS)[0]) == alone("a cat", PARAMS)
    wider = dataclasses.replace(PARAMS, beam_width=6)
    outputs = llm.beam_search(["a cat", PROMPT], [PARAMS, wider])
    assert [found(output) for output in outputs] == [alone("a cat", PARAMS), alone(PROMPT, wider)]


def test_what_makes_no_sense_is_refused(llm: LLM) -> None:
    out_of_range = dataclasses.replace(PARAMS, stop_token_ids=[32])
    calls: list[Callable[[], object]] = [
        lambda: llm.stream("a cat", PARAMS),
        lambda: llm.generate("a cat", PARAMS),
        lambda: llm.beam_search("a cat", SamplingParams()),
        lambda: llm.beam_search(["a cat", "a dog"], [PARAMS]),
        lambda: llm.beam_search("a cat", out_of_range),
    ]
    check_refusals("beams", calls, lambda call: call(), name=lambda _: "")
    assert not llm.engine.has_unfinished_requests


def test_beams_end_together_if_one_cannot_be_admitted_as_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = fake_engine(num_kv_blocks=256)
    manager = engine.scheduler.kv_cache_manager
    admit, errors = manager.admit, [BrokenPlanError("poisoned")]

    def poisoned(plan: AdmissionPlan, explains: bool) -> PrefixMatch:
        if errors:
            raise errors.pop()
        return admit(plan, explains)

    monkeypatch.setattr(manager, "admit", poisoned)
    output = engine.add_request(PROMPT, PARAMS)
    finish(engine)
    assert output.finished
    assert {each.finish_reason for each in output.outputs} == {"error"}
    assert manager.block_pool.num_free_blocks == manager.block_pool.num_blocks
    again = engine.add_request(PROMPT, PARAMS)
    finish(engine)
    assert found(again) == alone(PROMPT, PARAMS)
