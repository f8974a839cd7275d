"""Answers of a model that means something: forms that end well, stop strings, forced calls, the context's end."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.outputs import CompletionOutput
from support.chat_templates import FAMILIES
from support.http_server import RunningServer, running_server
from support.real_models import real_engine, real_file, run_together

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Peru", "Japan"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
    },
    "required": ["city", "country", "population"],
    "additionalProperties": False,
}
RULES = {
    "json": StructuredOutputsParams(json=SCHEMA),
    "choice": StructuredOutputsParams(choice=["Paris", "Lyon", "Marseille"]),
    "regex": StructuredOutputsParams(regex=r"[A-Z][a-z]{2,11}, \d{4}"),
}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def answers(*requests: SamplingParams, messages: Any = QUESTION, **knobs: Any) -> list[Any]:
    engine = real_engine("smollm2", **knobs)
    outputs = run_together(engine, [(ChatPrompt(messages), each) for each in requests])
    return [completion for output in outputs for completion in output.outputs]


def test_make_chat_real_answers_with_paris() -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    (arguments,) = re.findall(r"^CHAT_ARGS \?= (.*)$", makefile.read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "pellucid", "chat", str(real_file("smollm2"))]
    command += [*shlex.split(arguments), "--quiet", "What is the capital of France?"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "The capital of France is Paris."


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forms_are_complete(temperature: float) -> None:
    requests = [
        SamplingParams(
            structured_outputs=rule, temperature=temperature, seed=3, n=3, max_tokens=100
        )
        for rule in RULES.values()
    ]
    found = answers(*requests)
    for form, choice, text in zip(found[:3], found[3:6], found[6:], strict=True):
        value = json.loads(form.text)
        assert value.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
        assert value["country"] in ("France", "Peru", "Japan") and len(value["city"]) <= 20
        assert 0 <= value["population"] <= 99999999
        assert choice.text in ("Paris", "Lyon", "Marseille")
        assert re.fullmatch(r"[A-Z][a-z]{2,11}, \d{4}", text.text)
    assert {completion.finish_reason for completion in found} == {"stop"}


def test_of_three_choices_it_takes_the_right_one() -> None:
    rule = StructuredOutputsParams(choice=[" Lyon", " Marseille", " Paris"])
    params = SamplingParams(structured_outputs=rule, temperature=0)
    (output,) = run_together(real_engine("smollm2"), [("The capital of France is", params)])
    assert output.outputs[0].text == " Paris"


def test_a_stop_string_ends_the_text_before_it() -> None:
    params = {"temperature": 0.0, "max_tokens": 60, "seed": 1}
    messages = [{"role": "user", "content": "Count from 1 to 20."}]
    plain, stopped = answers(
        SamplingParams(**params), SamplingParams(**params, stop=["7"]), messages=messages
    )
    assert "7" in plain.text
    assert stopped.text == plain.text[: plain.text.index("7")]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "7")


def test_a_conversation_up_to_the_end_of_its_context() -> None:
    """Each answer is appended to the conversation; the last one ends where the context does."""
    messages = [{"role": "user", "content": "Tell me a long story about a fox."}]
    engine, reasons = real_engine("smollm2", max_model_len=320), []
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=90)
    while True:
        (output,) = run_together(engine, [(ChatPrompt(list(messages)), params)])
        answer: CompletionOutput = output.outputs[0]
        reasons.append(str(answer.finish_reason))
        num_tokens = len(output.prompt_token_ids) + len(answer.token_ids)
        assert num_tokens <= 320
        if num_tokens == 320:
            break
        assert len(answer.token_ids) == 90
        messages += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "Go on."},
        ]
    assert num_tokens == 320 and len(reasons) == 3
    with pytest.raises(ValueError, match="320"):
        run_together(engine, [(ChatPrompt([*messages, *messages]), params)])


# -- forced calls ----------------------------------------------------------------------------------

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


# It opens reasoning, which this model never closes by itself.
THINKS = FAMILIES["qwen"].replace(
    "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking",
    "{{- '<|im_start|>assistant\\n<think>\\n' }}\n    {%- if enable_thinking",
)


@pytest.fixture(scope="module", params=["qwen", "thinks"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    template = THINKS if request.param == "thinks" else FAMILIES[request.param]
    with running_server(real_engine("smollm2", {"chat_template": template})) as running:
        yield running


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_required_call_is_well_formed(server: RunningServer, temperature: float) -> None:
    body = {
        "model": "tested",
        "messages": [{"role": "user", "content": "What is the weather in Lima?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": temperature,
        "seed": 7,
        "n": 3,
        "max_tokens": 80,
    }
    reply = server.post("/v1/chat/completions", body).json
    for choice in reply["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"]["name"] == "weather"
        assert list(json.loads(call["function"]["arguments"])) == ["city"]


def opens_reasoning(server: RunningServer) -> bool:
    return server.engine.model.tokenizer.chat_template == THINKS


def test_reasoning_keeps_its_budget(server: RunningServer) -> None:
    body = {
        "model": "tested",
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 60,
        "thinking_token_budget": 8,
    }
    message = server.post("/v1/chat/completions", body).json["choices"][0]["message"]
    tokenizer = server.engine.model.tokenizer
    if opens_reasoning(server):
        assert 0 < len(tokenizer.encode(message["reasoning"], add_special_tokens=False)) <= 8
    else:
        assert message["content"] and not message.get("reasoning")
