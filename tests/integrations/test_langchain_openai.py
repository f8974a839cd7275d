"""LangChain's ChatOpenAI unchanged: chat, streams, tools, schemas, log-probabilities, errors, cancellation."""

from typing import Any, Literal

import openai
import pydantic
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from pellucid.inputs.prompts import ChatPrompt
from support import weather
from support.http_server import RunningServer
from support.offline import offline

QUESTION = "What is 12 + 7?"
APIS = (False, True)  # chat completions, responses


def model_of(server: RunningServer, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="tested",
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        **{"temperature": 0, "max_completion_tokens": 100, **fields},
    )


def expected_text(**params: Any) -> str:
    prompt = ChatPrompt([{"role": "user", "content": QUESTION}])
    return offline(prompt, temperature=0, **params).outputs[0].text


@pytest.mark.parametrize("responses", APIS)
def test_chat_whole_and_streamed(server: RunningServer, responses: bool) -> None:
    model = model_of(server, max_completion_tokens=12, use_responses_api=responses)
    reply = model.invoke(QUESTION)
    assert reply.text == expected_text(max_tokens=12)
    assert reply.usage_metadata is not None and reply.usage_metadata["output_tokens"] > 0
    assert "".join(part.text for part in model.stream(QUESTION)) == reply.text
    assert [each.text for each in model.batch([QUESTION, QUESTION])] == [reply.text] * 2


@pytest.mark.parametrize("responses", APIS)
def test_tools_and_the_turn_with_their_results(scripted: RunningServer, responses: bool) -> None:
    model = model_of(scripted, use_responses_api=responses).bind_tools(weather.TOOLS)
    question = HumanMessage(weather.QUESTION[0]["content"])
    reply: Any = model.invoke([question])
    (call,) = reply.tool_calls
    assert (call["name"], call["args"]) == ("weather", weather.ARGUMENTS)
    results = [ToolMessage("Sun.", tool_call_id=call["id"])]
    assert model.invoke([question, reply, *results]).text
    streamed: Any = None
    for part in model.stream([question]):
        streamed = part if streamed is None else streamed + part
    (call,) = streamed.tool_calls
    assert (call["name"], call["args"]) == ("weather", weather.ARGUMENTS)


class City(pydantic.BaseModel):
    """A city."""

    size: Literal["small", "large"]
    old: bool


@pytest.mark.parametrize("responses", APIS)
def test_a_schema_is_kept(server: RunningServer, responses: bool) -> None:
    model = model_of(server, use_responses_api=responses)
    found = model.with_structured_output(City, method="json_schema").invoke(QUESTION)
    assert isinstance(found, City)


def test_logprobs(server: RunningServer) -> None:
    model = model_of(server, logprobs=True, top_logprobs=2, max_completion_tokens=8)
    found = model.invoke(QUESTION).response_metadata["logprobs"]["content"]
    prompt = ChatPrompt([{"role": "user", "content": QUESTION}])
    (completion,) = offline(prompt, temperature=0, max_tokens=8, logprobs=2).outputs
    assert completion.logprobs is not None
    exact = [at[i].logprob for i, at in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert [entry["logprob"] for entry in found] == exact


def test_errors(server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        model_of(server).invoke("word " * 3000)
    with pytest.raises(openai.BadRequestError, match="temperature=-1"):
        model_of(server, temperature=-1).invoke(QUESTION)


def test_who_leaves_a_stream_ends_the_request(server: RunningServer) -> None:
    model = model_of(server, max_completion_tokens=None, extra_body={"ignore_eos": True})
    stream = model.stream(QUESTION)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    server.wait_until_idle()
