"""LLMEngine with a fake model: outputs of each step, and requests that do not affect each other."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pellucid.engine import LLMEngine, llm_engine
from pellucid.engine.completion import Completion
from pellucid.execution.sampler import SampledToken
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel
from pellucid.loading.parameters import Progress
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import EventRecord, Level, Load, to_us
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.scheduling.request import Taken
from support.fake_model import EOS, VOCAB_SIZE, FakeTokenizer, fake_engine, fake_logits
from support.ticking_clock import TICK, TickingClock


def run(engine: LLMEngine) -> list[CompletionDelta]:
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
        engine.scheduler.kv_cache_manager.check_integrity()
    assert engine.step() == []
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_free_blocks == pool.num_blocks
    return deltas


def complete(engine: LLMEngine, prompt: str | list[int], **params: object) -> RequestOutput:
    output = engine.add_request(prompt, SamplingParams(**params))
    run(engine)
    assert output.finished
    return output


def greedy(prompt: list[int], num_tokens: int) -> list[int]:
    """The fake model's greedy continuation, computed without the engine."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(int(fake_logits(token_ids).argmax()))
    return token_ids[len(prompt) :]


def test_greedy_is_the_models_own_continuation() -> None:
    output = complete(fake_engine(), [3, 1, 4], temperature=0, max_tokens=40, ignore_eos=True)
    assert output.outputs[0].token_ids == greedy([3, 1, 4], 40)
    assert output.outputs[0].text == FakeTokenizer().decode(output.outputs[0].token_ids)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (
        "length",
        "max_tokens",
    )


def find_seed_of_end(prompt: str) -> int:
    """A seed with which the fake model samples its end token within a few tokens."""
    for seed in range(1000):
        output = complete(fake_engine(), prompt, seed=seed, max_tokens=20, temperature=2.0)
        if output.outputs[0].finish_reason == "stop" and len(output.outputs[0].token_ids) > 2:
            return seed
    raise AssertionError


@pytest.mark.parametrize(("min_tokens", "stops"), [(4, True), (5, False)])
def test_a_stop_string_that_ends_with_the_last_of_min_tokens_is_none(
    min_tokens: int, stops: bool
) -> None:
    params = {"temperature": 0, "max_tokens": 9, "ignore_eos": True, "min_tokens": min_tokens}
    stop = FakeTokenizer().decode(greedy([3, 1, 4], 5))
    output = complete(fake_engine(), [3, 1, 4], stop=[stop[-1:]], **params)
    assert (len(output.outputs[0].token_ids) == 5) == stops


def test_the_end_token_stops_and_is_not_shown() -> None:
    seed = find_seed_of_end("hello")
    params = {"seed": seed, "max_tokens": 20, "temperature": 2.0}
    completion = complete(fake_engine(), "hello", **params).outputs[0]
    assert completion.token_ids[-1] == completion.stop_reason == EOS
    assert "#" not in completion.text
    shown = complete(fake_engine(), "hello", include_stop_str_in_output=True, **params).outputs[0]
    assert shown.text == completion.text + "#"
    going_on = complete(fake_engine(), "hello", ignore_eos=True, **params).outputs[0]
    assert going_on.finish_reason == "length"
    assert going_on.token_ids[: len(completion.token_ids)] == completion.token_ids


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_across_tokens(included: bool) -> None:
    free = complete(fake_engine(), "abc", seed=5, max_tokens=30, ignore_eos=True).outputs[0]
    stop = free.text[10:13]
    engine = fake_engine()
    output = engine.add_request(
        "abc",
        SamplingParams(
            seed=5, max_tokens=30, ignore_eos=True, stop=[stop], include_stop_str_in_output=included
        ),
    )
    streamed = "".join(delta.text for delta in run(engine))
    completion = output.outputs[0]
    end = free.text.index(stop)
    assert completion.text == streamed == free.text[: end + 3 if included else end]
    assert completion.token_ids == free.token_ids[: end + 3]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_a_stop_string_on_the_last_allowed_token_is_a_stop() -> None:
    free = complete(fake_engine(), "abc", seed=5, max_tokens=8, ignore_eos=True).outputs[0]
    output = complete(
        fake_engine(), "abc", seed=5, max_tokens=8, ignore_eos=True, stop=free.text[-2:]
    )
    assert output.outputs[0].finish_reason == "stop"


def test_a_held_back_beginning_of_a_stop_string_is_let_out_at_the_end() -> None:
    free = complete(fake_engine(), "abc", seed=5, max_tokens=8, ignore_eos=True).outputs[0]
    output = complete(
        fake_engine(), "abc", seed=5, max_tokens=8, ignore_eos=True, stop=free.text[-2:] + "##"
    )
    assert output.outputs[0].text == free.text
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("stop", [[], ["!"]])
@pytest.mark.parametrize("is_aborted", [False, True])
def test_an_answer_that_ends_within_a_character_says_so(
    is_aborted: bool, stop: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTokenizer, "token_bytes", lambda self, token_id: b"\xc3")
    engine = fake_engine()
    params = SamplingParams(max_tokens=9 if is_aborted else 2, ignore_eos=True, stop=stop)
    output = engine.add_request([3], params)
    deltas = engine.step() + engine.step()
    deltas += engine.abort(output.request_id)
    assert output.outputs[0].text == "".join(each.text for each in deltas) == "\ufffd\ufffd"


def test_logprobs_are_of_the_model_and_of_what_was_sampled() -> None:
    output = complete(
        fake_engine(), [3, 1, 4], seed=2, max_tokens=5, top_k=2, logprobs=3, ignore_eos=True
    )
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert completion.cumulative_logprob == sum(
        at[token_id].logprob
        for token_id, at in zip(completion.token_ids, completion.logprobs, strict=True)
    )
    for token_id, at in zip(completion.token_ids, completion.logprobs, strict=True):
        assert token_id in at
        assert [entry.rank for entry in at.values()][:3] == [1, 2, 3]
        kept = [entry.final_logprob for entry in at.values() if entry.final_logprob > -1e9]
        assert len(kept) == 2  # top_k
        assert at[token_id].decoded_token == FakeTokenizer.alphabet[token_id]


@pytest.mark.parametrize("budget", [2048, 5, 1])
def test_prompt_logprobs_cover_every_prompt_token(budget: int) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    engine = fake_engine(max_num_batched_tokens=budget)
    output = complete(
        engine, prompt, max_tokens=3, prompt_logprobs=0, temperature=0, ignore_eos=True
    )
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [next(iter(at)) for at in output.prompt_logprobs[1:] if at] == prompt[1:]
    again = complete(fake_engine(), prompt, max_tokens=1, prompt_logprobs=0)
    assert again.prompt_logprobs == output.prompt_logprobs


def test_n_answers_differ_by_stream_and_share_the_prompt() -> None:
    output = complete(fake_engine(), "hello world", n=3, seed=4, max_tokens=12)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    alone = complete(fake_engine(), "hello world", n=1, seed=4, max_tokens=12)
    assert alone.outputs[0] == output.outputs[0]


def test_best_of_gives_the_likeliest_answers_per_token() -> None:
    params = {"seed": 4, "max_tokens": 12, "temperature": 1.5}
    every = complete(fake_engine(), "hello world", n=7, logprobs=0, **params).outputs
    every.sort(key=lambda answer: -answer.cumulative_logprob / len(answer.token_ids))
    engine = fake_engine()
    output = engine.add_request("hello world", SamplingParams(n=3, best_of=7, **params))
    deltas = run(engine)
    assert [answer.text for answer in output.outputs] == [answer.text for answer in every[:3]]
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert output.outputs[0].cumulative_logprob == every[0].cumulative_logprob
    assert output.outputs[0].logprobs is None  # not asked for
    assert [(delta.index, delta.text, delta.finish_reason) for delta in deltas] == [
        (answer.index, answer.text, answer.finish_reason) for answer in output.outputs
    ]


def test_of_ranked_answers_those_that_failed_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine()
    output = engine.add_request(
        "hello", SamplingParams(n=2, best_of=3, max_tokens=5, ignore_eos=True)
    )
    engine.step()
    request = next(r for r in engine.scheduler.running if r.index == 0)
    take = Completion.take

    def fail_once(completion: Completion, sampled: Sequence[SampledToken], now: float) -> Taken:
        if completion.request is request:
            raise RuntimeError("poisoned")
        return take(completion, sampled, now)

    monkeypatch.setattr(Completion, "take", fail_once)
    run(engine)
    assert [answer.finish_reason for answer in output.outputs] == ["length", "length"]


def test_an_aborted_request_leaves_its_best_answers() -> None:
    engine = fake_engine()
    output = engine.add_request("hello", SamplingParams(n=1, best_of=4, seed=1, max_tokens=50))
    engine.step()
    engine.step()
    (delta,) = engine.abort(output.request_id)
    assert [answer.finish_reason for answer in output.outputs] == ["abort"]
    assert delta.text == output.outputs[0].text
    run(engine)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt: is empty"),
        ([], "prompt: is empty"),
        ([1] * 16, "has 16 tokens; the context of 16"),
        ([1, VOCAB_SIZE], r"token id 32 is not in 0 \.\. 31"),
        ([1, -1], "token id -1"),
        ([1, "a"], "token id 'a'"),
    ],
)
def test_a_bad_prompt_is_refused(prompt: str | list[int], message: str) -> None:
    engine = fake_engine(context_length=16)
    with pytest.raises(ValueError, match=message):
        engine.add_request(prompt, SamplingParams())
    assert not engine.has_unfinished_requests


def test_a_request_id_that_is_made_avoids_those_that_callers_chose() -> None:
    engine = fake_engine()
    chosen = engine.add_request("abc", SamplingParams(max_tokens=2), "request-0")
    made = engine.add_request("abc", SamplingParams(max_tokens=2))
    run(engine)
    assert chosen.request_id != made.request_id
    assert chosen.finished and made.finished


@pytest.mark.parametrize(
    ("params", "num_shared"),
    [
        (SamplingParams(max_tokens=3, prompt_logprobs=1, seed=1), 0),
        (SamplingParams(max_tokens=3, n=2, seed=1), 8),
        (BeamSearchParams(beam_width=3, max_tokens=3), 8),
    ],
)
def test_a_fork_shares_what_its_prompt_needs_no_logits_of(
    params: RequestParams, num_shared: int
) -> None:
    engine = fake_engine()
    parent = engine.add_request([3, 1, 4, 1, 5], SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(4):
        engine.step()
    prompt = [*parent.prompt_token_ids, *parent.outputs[0].token_ids]
    prepared = engine.prepare(prompt, params)
    fork = engine.add_prepared(prepared, continues=(f"{parent.request_id}/0", len(prompt) - 1))
    alone = fake_engine()
    expected = alone.add_request(prompt, params)
    for each in (engine, alone):
        while each.has_unfinished_requests:
            each.step()
            each.scheduler.check_integrity()
    assert fork.prompt_logprobs == expected.prompt_logprobs
    assert fork.outputs == expected.outputs
    processed = [each.metrics.num_processed_tokens for each in (fork, expected)]
    assert processed[1] - processed[0] == num_shared


@pytest.mark.parametrize(("weight", "before"), [(1.0, 1), (0.25, 5)])
def test_callers_take_turns_by_their_weights(weight: float, before: int) -> None:
    """How many of a greedy caller's requests get their answers before the only one of another caller, who came last."""
    engine = fake_engine(max_num_seqs=1, enable_prefix_caching=False)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    for number in range(9):
        engine.add_request([3] * 8, params, f"{number}", caller="greedy")
    engine.add_request([3] * 8, params, "polite", caller="polite", caller_weight=weight)
    ended = [delta.request_id for delta in run(engine) if delta.finish_reason is not None]
    assert ended.index("polite") == before


def test_an_engine_from_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    model, told, closed = fake_engine().model, [], []
    other_machines = SimpleNamespace(close=lambda: closed.append("machines"))

    def load(config: EngineConfig, report: Progress, on_download: Progress) -> LoadedModel:
        report(1, 2)
        on_download(3, 4)
        return model if config.speculation == "draft" else replace(model, elsewhere=other_machines)

    def load_draft(config: EngineConfig, model: LoadedModel) -> LoadedModel:
        if config.speculation != "draft":
            raise ValueError("no draft model")
        return replace(model, name="draft")

    monkeypatch.setattr("time.monotonic", TickingClock())
    monkeypatch.setattr(llm_engine, "load_model", load)
    monkeypatch.setattr(llm_engine, "load_draft_model", load_draft)
    bus, records = EventBus(), list[EventRecord]()
    bus.subscribe(records.append, Level.STEP)
    config = EngineConfig(speculation="draft")
    engine = LLMEngine.from_config(config, lambda *progress: told.append(progress), bus)
    assert told == [(1, 2), (3, 4)]
    assert records[0].event == Load("read", "bundled", 1, 2, to_us(TICK))
    assert engine.events is bus and engine.plan.draft_cache is not None
    with pytest.raises(ValueError, match="no draft model"):
        LLMEngine.from_config(EngineConfig(), lambda *progress: None)
    assert closed == ["machines"]


def test_whoever_watches_prefixes_comes_before_the_first() -> None:
    engine = fake_engine(block_size=16)
    complete(engine, [1] * 20, max_tokens=1)
    with pytest.raises(ValueError, match="listener: must come before the first request"):
        engine.watch_prefixes(SimpleNamespace())
