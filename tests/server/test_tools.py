"""Reasoning and tool calls in every protocol, by the official clients: whole and streamed, two turns."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from pellucid.async_engine import AsyncTokenStream
from support.http_server import RunningServer, running_server
from support.scripted_model import scripted_engine
from support.step_gate import StepGate

ANSWER = (
    "<think>Both are far away.</think>I look.\n"
    '<tool_call>{"name": "weather", "arguments": {"city": "Lima", "days": 2}}</tool_call>\n'
    '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
QUESTION: list[Any] = [{"role": "user", "content": "Weather in Lima?"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "w", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}},
]
CALLS = [("weather", {"city": "Lima", "days": 2}), ("clock", {})]
COMMON: dict[str, Any] = {"model": "tested", "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(scripted_engine(ANSWER)) as running:
        yield running
        running.wait_until_idle()


def test_chat_tells_reasoning_text_and_calls_apart(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**COMMON, messages=QUESTION, tools=TOOLS, n=2)
    for choice in reply.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        found = choice.message.model_dump()
        assert found["reasoning_content"] == found["reasoning"] == "Both are far away."
        calls: Any = choice.message.tool_calls
        assert [
            (call.function.name, json.loads(call.function.arguments)) for call in calls
        ] == CALLS
        assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)
    ids = [
        call["id"] for choice in reply.choices for call in choice.message.model_dump()["tool_calls"]
    ]
    assert len(set(ids)) == 4


def test_a_streamed_call_begins_with_its_name_and_goes_on_by_its_index(
    client: openai.OpenAI,
) -> None:
    text, reasoning, last = "", "", None
    calls: dict[int, dict[str, str]] = {}
    for chunk in client.chat.completions.create(
        **COMMON, messages=QUESTION, tools=TOOLS, stream=True
    ):
        (choice,) = chunk.choices
        last = choice.finish_reason
        text += choice.delta.content or ""
        reasoning += choice.delta.model_dump().get("reasoning_content") or ""
        assert choice.delta.tool_calls is None or choice.delta.tool_calls
        for part in choice.delta.tool_calls or ():
            assert part.function is not None
            if part.index not in calls:
                assert part.id and part.type == "function" and part.function.name
                calls[part.index] = {"name": part.function.name, "arguments": ""}
            else:
                assert part.id is None and part.function.name is None
            calls[part.index]["arguments"] += part.function.arguments or ""
    assert (text, reasoning, last) == ("I look.", "Both are far away.", "tool_calls")
    assert [(call["name"], json.loads(call["arguments"])) for call in calls.values()] == CALLS


def test_a_chunk_has_each_call_once_however_many_steps_it_brings(
    client: openai.OpenAI, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients take two entries of one chunk for two calls. A slow reader gets the tokens of all steps at once."""
    call_back = AsyncTokenStream.call_back

    server.wait_until_idle()
    gate = StepGate(server.engine)

    def read_at_the_end(stream: AsyncTokenStream, _: object, on_end: Callable[[], None]) -> None:
        call_back(stream, lambda delta: False, on_end)
        gate.open()

    monkeypatch.setattr(AsyncTokenStream, "call_back", read_at_the_end)
    with client.chat.completions.create(
        **COMMON, messages=QUESTION, tools=TOOLS, stream=True
    ) as stream:
        chunks: list[Any] = [
            [
                (call.index, call.id is not None, call.function.name, call.function.arguments)
                for call in chunk.choices[0].delta.tool_calls or ()
            ]
            for chunk in stream
        ]
    (calls,) = filter(None, chunks)
    found = [(*call[:3], json.loads(call[3])) for call in calls]
    assert found == [(index, True, *call) for index, call in enumerate(CALLS)]


def test_a_second_turn_with_the_tools_results(client: openai.OpenAI, server: RunningServer) -> None:
    first = client.chat.completions.create(**COMMON, messages=QUESTION, tools=TOOLS)
    message: Any = first.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls
    ]
    messages = [*QUESTION, message.model_dump(exclude_none=True, exclude={"reasoning"}), *results]
    assert client.chat.completions.create(**COMMON, messages=messages, tools=TOOLS).choices
    text = server.post("/apply-template", {"messages": messages, "tools": TOOLS}).json["prompt"]
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima", "days": 2}}' in text
    assert text.count("<|tool|>sunny") == 2


def test_anthropic_gets_blocks(server: RunningServer) -> None:
    tools: list[Any] = [
        {"name": "weather", "description": "w", "input_schema": SCHEMA},
        {"name": "clock", "input_schema": {"type": "object"}},
    ]
    fields: dict[str, Any] = {
        "model": "alias-1",
        "max_tokens": 300,
        "messages": QUESTION,
        "tools": tools,
    }
    fields["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        whole: Any = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            streamed: Any = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        thinking, text, *calls = message.content
        assert (thinking.type, thinking.thinking) == ("thinking", "Both are far away.")
        assert (text.type, text.text) == ("text", "I look.")
        assert [(call.name, call.input) for call in calls] == CALLS


def test_responses_get_items(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    fields: dict[str, Any] = {**COMMON, "input": "Weather in Lima?", "tools": tools}
    whole: Any = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        streamed: Any = stream.get_final_response()
    for response in (whole, streamed):
        assert response.status == "completed"
        reasoning, message, *calls = response.output
        assert reasoning.content[0].text == "Both are far away."
        assert message.content[0].text == response.output_text == "I look."
        assert [(call.name, json.loads(call.arguments)) for call in calls] == CALLS


def test_ollama_gets_whole_calls(server: RunningServer) -> None:
    with ollama.Client(host=server.url) as client:
        assert client.show("tested").capabilities == ["completion", "tools", "thinking"]
        whole: Any = client.chat("tested", QUESTION, tools=TOOLS, options={"temperature": 0})
        parts: Any = list(
            client.chat("tested", QUESTION, tools=TOOLS, options={"temperature": 0}, stream=True)
        )
    message = whole.message
    assert (message.content, message.thinking) == ("I look.", "Both are far away.")
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == CALLS
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == "Both are far away."
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == CALLS
