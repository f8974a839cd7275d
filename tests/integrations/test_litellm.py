"""LiteLLM unchanged, by three of its providers: chat, streams, tools, schemas, log-probabilities, errors."""

import json
from typing import Any

import litellm
import pytest

from pellucid.inputs.prompts import ChatPrompt
from support import weather
from support.http_server import RunningServer
from support.offline import offline

QUESTION: list[Any] = [{"role": "user", "content": "What is 12 + 7?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
PROVIDERS = ("openai", "anthropic", "ollama_chat")


def complete(server: RunningServer, provider: str, **fields: Any) -> Any:
    base = f"{server.url}/v1" if provider == "openai" else server.url
    return litellm.completion(
        model=f"{provider}/tested", api_base=base, api_key="none", max_retries=0, **fields
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_chat_whole_and_streamed(server: RunningServer, provider: str) -> None:
    expected = offline(ChatPrompt(QUESTION), temperature=0, max_tokens=12)
    whole = complete(server, provider, messages=QUESTION, **GREEDY)
    (choice,) = whole.choices
    (completion,) = expected.outputs
    assert choice.message.content == completion.text
    assert choice.finish_reason == completion.finish_reason
    assert whole.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert whole.usage.completion_tokens == len(completion.token_ids)
    parts = list(complete(server, provider, messages=QUESTION, stream=True, **GREEDY))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == completion.text


@pytest.mark.parametrize("provider", PROVIDERS)
def test_tools_and_the_turn_with_their_results(scripted: RunningServer, provider: str) -> None:
    fields: dict[str, Any] = {"tools": weather.TOOLS, "temperature": 0, "max_tokens": 100}
    (choice,) = complete(scripted, provider, messages=weather.QUESTION, **fields).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == weather.ARGUMENTS
    assert choice.message.reasoning_content == "Lima is far away."
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sun."}
    second = [*weather.QUESTION, choice.message.model_dump(), result]
    assert complete(scripted, provider, messages=second, **fields).choices
    arguments = ""
    for part in complete(scripted, provider, messages=weather.QUESTION, stream=True, **fields):
        for added in part.choices[0].delta.tool_calls or ():
            arguments += added.function.arguments or ""
    assert json.loads(arguments) == weather.ARGUMENTS


@pytest.mark.parametrize("provider", ["openai", "ollama_chat"])
def test_a_schema_is_kept(server: RunningServer, provider: str) -> None:
    schema = {
        "type": "object",
        "properties": {"old": {"type": "boolean"}},
        "required": ["old"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    reply = complete(server, provider, messages=QUESTION, response_format=wanted, **GREEDY)
    assert json.loads(reply.choices[0].message.content).keys() == {"old"}


def test_logprobs(server: RunningServer) -> None:
    fields = {**GREEDY, "logprobs": True, "top_logprobs": 2}
    (choice,) = complete(server, "openai", messages=QUESTION, **fields).choices
    (completion,) = offline(ChatPrompt(QUESTION), temperature=0, max_tokens=12, logprobs=2).outputs
    assert completion.logprobs is not None
    exact = [at[i].logprob for i, at in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert [entry.logprob for entry in choice.logprobs.content] == exact


def test_errors_are_those_that_litellm_knows(server: RunningServer) -> None:
    long = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(server, "openai", messages=long)
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(server, "anthropic", messages=long, max_tokens=5)
    with pytest.raises(litellm.BadRequestError):
        complete(server, "openai", messages=QUESTION, temperature=-1)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model="openai/gpt-5", api_base=f"{server.url}/v1", api_key="x", messages=QUESTION
        )


def test_who_leaves_a_stream_ends_the_request(server: RunningServer) -> None:
    stream = complete(
        server, "openai", messages=QUESTION, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.completion_stream.response.close()
    server.wait_until_idle()


def test_responses(server: RunningServer) -> None:
    reply = litellm.responses(
        model="openai/tested",
        api_base=f"{server.url}/v1",
        api_key="none",
        input="What is 12 + 7?",
        temperature=0,
        max_output_tokens=12,
    )
    expected = offline(ChatPrompt(QUESTION), temperature=0, max_tokens=12)
    assert reply.output[0].content[0].text == expected.outputs[0].text
