"""RequestMaker: the scheduler's requests for a caller's request, and requests that are refused."""

from typing import Any

import pytest

from pellucid.engine.request_maker import RequestMaker
from pellucid.facts.model_config import LongRopeScaling, RopeConfig
from pellucid.inputs.prompts import ChatPrompt, PromptTooLongError
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.scheduling.block import NO_SALT
from pellucid.text.no_tokenizer import NoTokenizer
from support.fake_model import (
    EOS,
    VOCAB_SIZE,
    FakeClock,
    FakeTokenizer,
    fake_engine,
    fake_model_config,
)
from support.refusals import check_refusals


def maker(context_length: int = 64) -> RequestMaker:
    return RequestMaker(fake_model_config(context_length), FakeTokenizer(), context_length)


def test_answers_share_all_but_their_stream_and_their_tokens() -> None:
    made = maker()
    prepared = made.prepare([1, 2], SamplingParams(n=2, best_of=3), FakeClock(7.0))
    requests = made.make("r", prepared, priority=-1)
    assert [request.request_id for request in requests] == ["r/0", "r/1", "r/2"]
    assert [request.index for request in requests] == [0, 1, 2]
    assert len({request.seed for request in requests}) == 1
    assert {(request.arrival_time, request.priority) for request in requests} == {(7.0, -1)}
    assert len({id(request.output_token_ids) for request in requests}) == 3


def test_who_says_nothing_is_one_of_many() -> None:
    engine, made = fake_engine(), maker()
    prepared = made.prepare([1, 2], SamplingParams(), FakeClock())
    engine.add_request([1, 2], SamplingParams())
    engine.add_prepared(prepared)
    for each in (*engine.scheduler.requests.values(), *made.make("r", prepared)):
        assert (each.priority, each.caller, each.caller_weight) == (0, "", 1.0)
        assert each.cache_salt == NO_SALT


REFUSED: list[dict[str, Any]] = [
    *({"caller_weight": weight} for weight in (0.00099, 1000.01, True, "1")),
    *({"priority": level} for level in (1.0, "0", None, True, 2**31 + 1, -(2**31) - 1)),
    *({"cache_salt": salt} for salt in (b"x", "x" * 257)),
]


def test_what_is_refused_and_the_bounds_that_are_not() -> None:
    made = maker()
    prepared = made.prepare([1], SamplingParams(), FakeClock())
    check_refusals("request", REFUSED, lambda fields: made.make("r", prepared, **fields))
    for allowed in (0.001, 1000.0):
        assert made.make("r", prepared, caller_weight=allowed)[0].caller_weight == allowed


def test_every_salt_is_another_one() -> None:
    salts = [None, "", "a", "b", "None", "('a', None)", "a', None)", "é", "\ud800", "\0", "a\n"]
    assert len({maker().salt(salt, 2).text for salt in salts}) == len(salts)


def test_the_first_and_the_last_token_and_the_longest_salt_may_be_sent() -> None:
    encoded = maker().encode([0, VOCAB_SIZE - 1], FakeClock())
    assert encoded.token_ids == (0, VOCAB_SIZE - 1)
    assert maker().salt("x" * 256, 2).own == "x" * 256


class WithTurns(FakeTokenizer):
    """A conversation is one token, and another one ends a turn of it."""

    def encode_conversation(self, prompt: ChatPrompt, max_model_len: int) -> list[int]:
        return [1]

    def end_of_turn_token_ids(self, prompt: ChatPrompt | None = None) -> tuple[int, ...]:
        return (7,)


def test_the_end_of_a_turn_ends_an_answer_in_a_conversation_too() -> None:
    made = RequestMaker(fake_model_config(), WithTurns(), 64)
    chat = ChatPrompt([{"role": "user", "content": "a"}])
    ends = [made.encode(prompt, FakeClock()).end_token_ids for prompt in (chat, "a")]
    assert ends == [{EOS, 7}, {EOS}]


class WithSpecialTokens(FakeTokenizer):
    """What begins a text is a special token."""

    def encode(self, text: str, add_special_tokens: bool = True, **_: object) -> list[int]:
        return [0] * add_special_tokens + super().encode(text)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return super().decode(token_ids).replace("#", "" if skip_special_tokens else "#")


def test_reasoning_begins_and_ends_by_special_tokens_too() -> None:
    made = RequestMaker(fake_model_config(64, RopeConfig(1e4, 2)), WithSpecialTokens(), 64)
    params = SamplingParams(thinking_token_budget=0)
    prepared = made.prepare(FakeTokenizer().encode("#?"), params, FakeClock())
    assert prepared.thinking_budget.forced_token(()) == FakeTokenizer().encode("!")[0]
    assert made.make("r", prepared)[0].cache_salt == NO_SALT


@pytest.mark.parametrize(
    ("fields", "num_decoded"),
    [({}, 0), ({"stop": "a"}, 0), ({"stop": "a", "stop_in_reasoning": False}, 1)],
)
def test_only_where_reasoning_counts_the_prompts_text_is_made(
    fields: dict[str, object], num_decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    monkeypatch.setattr(FakeTokenizer, "decode", lambda *_, **__: decoded.append("") or "")
    prepared = maker().prepare([1], SamplingParams(**fields), FakeClock())
    assert len(decoded) == num_decoded
    assert (prepared.reasoning is not None) == (num_decoded > 0)


@pytest.mark.parametrize(
    ("fields", "takes_time"),
    [
        ({}, False),
        ({"stop": "a"}, True),
        ({"bad_words": ["a"]}, True),
        ({"thinking_token_budget": 0}, True),
        ({"structured_outputs": StructuredOutputsParams(regex="a")}, True),
    ],
)
def test_what_waits_for_a_thread_of_its_own(fields: dict[str, Any], takes_time: bool) -> None:
    """All else is done on the event loop."""
    made, params = maker(), SamplingParams(**fields)
    encoded = made.encode([1], FakeClock())
    assert made.preparing_takes_time(encoded, params) == takes_time
    assert made.preparing_takes_time([1], params)


def test_beyond_the_trained_length_only_prompts_of_one_length_share_blocks() -> None:
    scaling = LongRopeScaling((1.0,), (2.0,), original_max_position=8, attention_factor=1.0)
    config = fake_model_config(64, RopeConfig(1e4, 2, scaling))
    made = RequestMaker(config, FakeTokenizer(), 64)
    salts = {
        length: made.make("r", made.prepare([1] * length, SamplingParams(), FakeClock()))[
            0
        ].cache_salt
        for length in (4, 8, 9, 10)
    }
    assert salts[4] == salts[8]
    assert len(set(salts.values())) == len({salt.text for salt in salts.values()}) == 3


def test_a_prompt_without_room_for_an_answer_is_refused_with_both_lengths() -> None:
    with pytest.raises(PromptTooLongError, match="has 64 tokens; the context of 64") as refused:
        maker(64).encode([1] * 64, FakeClock())
    assert (refused.value.num_tokens, refused.value.max_model_len) == (64, 64)


def test_without_a_tokenizer_token_ids_are_the_only_prompts() -> None:
    maker = RequestMaker(fake_model_config(), NoTokenizer(VOCAB_SIZE), max_model_len=64)
    encoded = maker.encode([1, 2, 3], lambda: 0.0)
    prepared = maker.prepare(encoded, SamplingParams(), lambda: 0.0)
    assert maker.make("r", prepared)[0].prompt_token_ids == (1, 2, 3)
    budget = maker.prepare(encoded, SamplingParams(thinking_token_budget=3), lambda: 0.0)
    assert budget.thinking_budget is None
    for prompt in ("text", ChatPrompt([{"role": "user", "content": "text"}])):
        with pytest.raises(ValueError, match="no tokenizer is loaded; give the prompt as token id"):
            maker.encode(prompt, lambda: 0.0)
    for words in ({"stop": "x"}, {"bad_words": ["x"]}):
        with pytest.raises(ValueError, match="skip_tokenizer_init=True"):
            maker.prepare(encoded, SamplingParams(**words), lambda: 0.0)
