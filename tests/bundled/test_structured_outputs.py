"""Structured outputs of the bundled model: the same alone, in a batch and on every path of the sampler."""

import json
import re

import pytest

from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from support.bundled import bundled_engine

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "size": {"enum": ["small", "large"]},
        "ok": {"type": "boolean"},
    },
    "required": ["city", "size", "ok"],
    "additionalProperties": False,
}
RULES = {
    "json": StructuredOutputsParams(json=SCHEMA),
    "choice": StructuredOutputsParams(choice=["Yes", "No"]),
    "regex": StructuredOutputsParams(regex=r"\d{3}-\d{2}"),
    "grammar": StructuredOutputsParams(grammar='start: "a" | "b" start'),
}
PROMPT = "The capital of France is"


def answers(*requests: SamplingParams, prompt: str | ChatPrompt = PROMPT, **knobs: object):
    engine = bundled_engine(**knobs)
    outputs = [engine.add_request(prompt, params) for params in requests]
    while engine.has_unfinished_requests:
        engine.step()
    return [completion for output in outputs for completion in output.outputs]


def params(rule: str, **others: object) -> SamplingParams:
    return SamplingParams(structured_outputs=RULES[rule], max_tokens=80, seed=5, **others)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_have_the_form(temperature: float) -> None:
    requests = [params(rule, temperature=temperature, n=2) for rule in RULES]
    together = answers(*requests)
    apart = [completion for request in requests for completion in answers(request)]
    assert together == apart
    for first in range(2):
        form, choice, digits, grammar = together[first::2]
        assert json.loads(form.text).keys() == SCHEMA["properties"].keys()
        assert choice.text in ("Yes", "No") and len(choice.token_ids) <= 3
        assert re.fullmatch(r"\d{3}-\d{2}", digits.text)
        assert re.fullmatch("b*a", grammar.text)
    assert {completion.finish_reason for completion in together} == {"stop"}


def test_the_sampler_of_the_engine_and_that_of_the_backend_agree() -> None:
    """Log-probabilities take another path."""
    plain = answers(params("json"))[0]
    with_logprobs = answers(params("json", logprobs=1))[0]
    assert plain.token_ids == with_logprobs.token_ids
    assert all(
        entry.final_logprob > -float("inf")
        for token_id, at in zip(with_logprobs.token_ids, with_logprobs.logprobs, strict=True)
        for entry in [at[token_id]]
    )


def test_on_the_numpy_backend() -> None:
    answer = answers(params("regex"), backend="numpy")[0]
    assert re.fullmatch(r"\d{3}-\d{2}", answer.text)
