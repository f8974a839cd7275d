"""Structured outputs: the forms of rules, their masks, and completions that keep them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.scheduling.request import Request
from pellucid.speculation.proposers.proposer import Proposer
from pellucid.text.grammars import GrammarCompiler
from pellucid.text.reasoning_tokens import ThinkingBudget
from pellucid.text.responses.reasoning_marks import ReasoningMarks
from support.fake_model import EOS, VOCAB_SIZE, FakeTokenizer, fake_engine
from support.refusals import check_refusals

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def schema_of(num_properties: int) -> dict[str, Any]:
    """An object whose properties may all be left out."""
    properties = {f"p{number}": {"type": "string"} for number in range(num_properties)}
    return {"type": "object", "properties": properties}


WRONG_FORMS: list[dict[str, Any]] = [
    {},
    {"regex": "a", "choice": ["b"]},
    *({"json": wrong} for wrong in (5, True, "[]")),
    {"choice": "yes"},
    {"choice": [1]},
    {"regex": 5},
    {"grammar": "x" * 200_001},
]


def test_rules_of_another_form() -> None:
    check_refusals(
        "structured_outputs", WRONG_FORMS, lambda given: StructuredOutputsParams(**given)
    )
    for no_json in ("{", {"a": float("nan")}):  # Python's words go on
        with pytest.raises(ValueError, match=r"^structured_outputs\.json: is not JSON: "):
            StructuredOutputsParams(json=no_json)


def test_a_rule_can_be_compared_and_kept() -> None:
    by_object = StructuredOutputsParams(json=SCHEMA)
    assert by_object == StructuredOutputsParams(json=json.dumps(SCHEMA))
    assert len({by_object, StructuredOutputsParams(choice=["a"]), by_object}) == 2
    assert StructuredOutputsParams(grammar="x" * 200_000)


def compiler(**knobs: Any) -> GrammarCompiler:
    return GrammarCompiler(FakeTokenizer(), (EOS,), **knobs)


def allowed(mask: bytes) -> str:
    assert len(mask) == 4 * -(-VOCAB_SIZE // 32)
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return "".join(FakeTokenizer.alphabet[i] for i in np.flatnonzero(bits))


def test_masks() -> None:
    tokenizer = FakeTokenizer()
    matcher = compiler().compile(StructuredOutputsParams(choice=["yes", "yell", "no"]))
    assert allowed(matcher.mask([])) == "ny"
    assert allowed(matcher.mask(tokenizer.encode("ye"))) == "ls"
    assert not matcher.is_complete(tokenizer.encode("ye"))
    assert matcher.is_complete(tokenizer.encode("yes"))
    # back, and another way, as drafts that were wrong
    assert allowed(matcher.mask(tokenizer.encode("yel"))) == "l"
    assert allowed(matcher.mask(tokenizer.encode("n"))) == "o"
    assert allowed(matcher.mask([])) == "ny"
    with pytest.raises(ValueError, match="the answer breaks the rule"):
        matcher.mask(tokenizer.encode("x"))
    assert allowed(matcher.mask(tokenizer.encode("n"))) == "o"
    assert allowed(matcher.copy().mask([])) == "ny"


def test_where_the_rule_allows_an_end_an_end_token_is_allowed() -> None:
    matcher = compiler().compile(StructuredOutputsParams(regex="a+b?"))
    end = FakeTokenizer.alphabet[EOS]
    assert allowed(matcher.mask([])) == "a"
    assert allowed(matcher.mask(FakeTokenizer().encode("aa"))) == f"{end}ab"
    assert not matcher.is_complete(FakeTokenizer().encode("aa"))
    assert matcher.is_complete(FakeTokenizer().encode("aab"))


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ({"json": {"not": {}}}, r'structured_outputs.json: Unimplemented keys: \["not"\]'),
        ({"json": {"type": "foo"}}, "structured_outputs.json: Invalid type: foo"),
        ({"regex": "("}, "structured_outputs.regex: .*invalid regex"),
        ({"json": {"$ref": "#"}}, "structured_outputs.json: no text can satisfy this rule"),
        ({"grammar": "start: nothing"}, 'structured_outputs.grammar: .*unknown name: "nothing"'),
        ({"json": schema_of(6_000)}, "structured_outputs.json: grammar size .* too big .* 15000"),
    ],
)
def test_rules_with_errors(rule: dict[str, Any], error: str) -> None:
    """Also of those that would take half a minute to compile."""
    engine = fake_engine()
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**rule))
    with pytest.raises(ValueError, match=error):
        engine.add_request([1], params)
    assert not engine.has_unfinished_requests


def test_compiled_rules_are_kept_within_bounds() -> None:
    made = compiler()
    for number in range(70):
        made.compile(StructuredOutputsParams(choice=["a" * (number + 1)]))
    assert len(made._compiled) == 64


def test_the_bytes_of_compiled_rules_are_bounded() -> None:
    """Of 64 large rules each would have a hundred megabytes."""
    made = compiler(max_cached_bytes=1_000_000)
    for number in range(6):
        choices = ["a" * (index + 1 + number) for index in range(40)]
        rule = StructuredOutputsParams(choice=choices)
        first, again = made.compile(rule), made.compile(rule)
        assert first.mask(()) == again.mask(())
        assert made._num_bytes <= 1_000_000
    assert 0 < len(made._compiled) < 6


def finish(engine: Any, *requests: tuple[list[int], SamplingParams]) -> list[Any]:
    outputs = [engine.add_request(prompt, params) for prompt, params in requests]
    while engine.has_unfinished_requests:
        engine.step()
    return outputs


@pytest.mark.parametrize("temperature", [0.0, 5.0])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_answers_keep_the_rule(temperature: float, logprobs: int | None) -> None:
    choice = ["yes", "no", "perhaps"]
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(choice=choice),
        temperature=temperature,
        logprobs=logprobs,
        n=8,
        seed=1,
    )
    free = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    engine = fake_engine()
    output, other = finish(engine, ([3, 1], params), ([3, 1], free))
    assert {completion.text for completion in output.outputs} <= set(choice)
    if temperature:
        assert len({completion.text for completion in output.outputs}) > 1
    for completion in output.outputs:
        assert completion.finish_reason == "stop"
        assert completion.stop_reason == "structured_outputs"
    assert other.outputs == finish(fake_engine(), ([3, 1], free))[0].outputs


def test_a_rule_that_turns_out_too_complex_ends_its_request_with_the_reason() -> None:
    branches = " | ".join(f'r{number} "b"' for number in range(300))
    rules = "\n".join(f'r{i}: "c"* s{i}\ns{i}: "d"*' for i in range(300))
    rule = StructuredOutputsParams(grammar=f'start: "a" ({branches})\n{rules}')
    matcher = compiler().compile(rule)
    assert allowed(matcher.mask([])) == "a"
    with pytest.raises(ValueError, match=r"structured_outputs: .*[0-9]+ items; max is 2000"):
        matcher.mask(FakeTokenizer().encode("a"))


def test_an_answer_may_end_where_the_rule_allows_it() -> None:
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="[ab]+"), n=16, seed=1, max_tokens=40
    )
    output = finish(fake_engine(), ([3], params))[0]
    assert all(set(completion.text) <= set("ab") for completion in output.outputs)
    assert {EOS} <= {completion.stop_reason for completion in output.outputs}


def test_parameters_that_leave_nothing_end_that_request_alone() -> None:
    no_a = SamplingParams(
        structured_outputs=StructuredOutputsParams(choice=["a"]), bad_words=["a"], max_tokens=5
    )
    engine = fake_engine()
    bad, good = finish(engine, ([3], no_a), ([3], SamplingParams(max_tokens=5)))
    assert bad.outputs[0].finish_reason == "error"
    assert "structured_outputs, bad_words: these leave no token" in bad.outputs[0].stop_reason
    assert good.outputs[0].finish_reason in ("stop", "length")


class CountedTokens(list[int]):
    """Counts the tokens that are copied from it."""

    num_read = 0

    def __iter__(self) -> Iterator[int]:
        type(self).num_read += len(self)
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        type(self).num_read += len(found) if isinstance(index, slice) else 1
        return found


class Drafts(Proposer):
    """Drafts of any request by how many tokens its answer has."""

    def __init__(self, drafts: Callable[[int], list[int]]) -> None:
        self._drafts = drafts

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        return {each.request_id: self._drafts(each.num_output_tokens) for each in requests}


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("has_drafts", [False, True])
def test_a_long_answer_is_not_copied_for_each_token(has_drafts: bool, logprobs: int | None) -> None:
    """Its grammar and its budget follow it token by token."""
    num_tokens = 200
    drafts = Drafts(lambda num_known: FakeTokenizer().encode("abaabb"))
    engine = fake_engine(context_length=1000, proposer=drafts if has_drafts else None)
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="[ab]+"),
        seed=3,
        max_tokens=num_tokens,
        min_tokens=num_tokens,
        logprobs=logprobs,
    )
    output = engine.add_request([3], params)
    (completion,) = engine._completions.unfinished.values()
    completion.request.thinking_budget = ThinkingBudget.of(
        ReasoningMarks(("x",), ("y",), begins_open=False), 5, lambda token: b"a", lambda text: [1]
    )
    CountedTokens.num_read = 0
    completion.request.output_token_ids = CountedTokens()
    while engine.has_unfinished_requests:
        engine.step()
    assert len(output.outputs[0].token_ids) == num_tokens
    assert 0 < CountedTokens.num_read < 40 * num_tokens


def test_drafts_change_nothing() -> None:
    """The right tokens and wrong ones, some of which the rule forbids."""
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="(ab|cd|e)+f"), seed=3, max_tokens=60
    )
    plain = finish(fake_engine(), ([3], params))[0]
    right = plain.outputs[0].token_ids
    drafts = Drafts(lambda num_known: [*right[num_known : num_known + num_known % 4], 1, 6, 31])
    engine = fake_engine(proposer=drafts)
    drafted = finish(engine, ([3], params))[0]
    assert engine.speculation.num_drafts > engine.speculation.num_right > 0
    assert drafted.outputs == plain.outputs
