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


def test_a_call_that_a_limit_cuts_off_ends_with_length(client: openai.OpenAI) -> None:
    fields = {**COMMON, "messages": QUESTION, "tools": TOOLS, "max_tokens": 50}
    (choice,) = client.chat.completions.create(**fields).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls


def test_without_tools_nothing_is_a_call(client: openai.OpenAI) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = client.chat.completions.create(**COMMON, messages=QUESTION, **fields).choices  # type: ignore
        assert choice.message.tool_calls is None and choice.finish_reason == "stop"
        assert "<tool_call>" in (choice.message.content or "")


def test_who_asks_for_special_tokens_gets_the_text_as_it_is(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(
        **COMMON, messages=QUESTION, tools=TOOLS, extra_body={"skip_special_tokens": False}
    ).choices
    assert (choice.message.content or "").startswith(ANSWER)


def test_stop_strings_do_not_count_in_reasoning(
    client: openai.OpenAI, server: RunningServer
) -> None:
    (choice,) = client.chat.completions.create(
        **COMMON, messages=QUESTION, stop=["away", "look"]
    ).choices
    assert (choice.message.content, choice.finish_reason) == ("I", "stop")
    found = choice.message.model_dump()
    assert (found["reasoning"], choice.model_dump()["stop_reason"]) == (
        "Both are far away.",
        "look",
    )
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        message = claude.messages.create(
            model="tested",
            max_tokens=80,
            messages=QUESTION,
            stop_sequences=["away", "look"],
            extra_body={"temperature": 0},
        )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "look")
    with ollama.Client(host=server.url) as client_of_ollama:
        options = {"temperature": 0, "stop": ["away", "look"]}
        reply = client_of_ollama.chat("tested", QUESTION, options=options).message
    assert (reply.content, reply.thinking) == ("I", "Both are far away.")


def test_the_prompt_says_whether_reasoning_is_over(client: openai.OpenAI) -> None:
    """With enable_thinking=false the template has closed it; the answer's own tag opens it again."""
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    (choice,) = client.chat.completions.create(
        **COMMON, messages=QUESTION, tools=TOOLS, extra_body=extra
    ).choices
    assert choice.message.tool_calls and choice.finish_reason == "tool_calls"


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


def test_a_budget_ends_the_reasoning(client: openai.OpenAI, server: RunningServer) -> None:
    """The budget's tokens, then the end of reasoning; by each protocol's field. The script goes on where it was."""
    whole = client.chat.completions.create(**COMMON, messages=QUESTION)
    thoughts = whole.choices[0].message.model_dump()["reasoning"]
    num_thoughts = whole.usage.completion_tokens_details.reasoning_tokens  # type: ignore[union-attr]
    assert num_thoughts and num_thoughts > 3
    for fields in (
        {"thinking_token_budget": 3},
        {"thinking_budget_tokens": 3, "thinking_budget": 3},
    ):
        reply = client.chat.completions.create(**COMMON, messages=QUESTION, extra_body=fields)
        found = reply.choices[0].message.model_dump()
        assert thoughts.startswith(found["reasoning"]) and found["reasoning"] != thoughts
        assert found["content"] is not None
        assert reply.usage.completion_tokens_details.reasoning_tokens == 3  # type: ignore[union-attr]
        chunks = list(
            client.chat.completions.create(
                **COMMON,
                messages=QUESTION,
                extra_body=fields,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert chunks[-1].usage == reply.usage
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        message = claude.messages.create(
            model="tested",
            max_tokens=80,
            messages=QUESTION,
            thinking={"type": "enabled", "budget_tokens": 3},
            extra_body={"temperature": 0},
        )
    assert message.content[0].type == "thinking"
    assert message.content[0].thinking == found["reasoning"]


def test_a_budget_that_is_not_used_up_changes_nothing(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(**COMMON, messages=QUESTION).choices
    for budget in (-1, 300):
        extra = {"thinking_token_budget": budget}
        reply = client.chat.completions.create(**COMMON, messages=QUESTION, extra_body=extra)
        assert reply.choices == free


def test_efforts_of_a_model_whose_template_reads_none(client: openai.OpenAI) -> None:
    """Its template reads enable_thinking: effort none closes the reasoning in the prompt, the others set budgets or
    no limit."""
    reply = client.responses.create(**COMMON, input="Weather?", reasoning={"effort": "high"})
    assert reply.usage and reply.usage.output_tokens_details.reasoning_tokens > 3
    assert reply.model_dump()["warnings"] == []
    low = client.responses.create(**COMMON, input="Weather?", reasoning={"effort": "low"})
    assert low.output_text == reply.output_text
    none = client.responses.create(**COMMON, input="Weather?", reasoning={"effort": "none"})
    assert none.usage and none.usage.input_tokens > reply.usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget=-2: must be at least 0"),
        (
            {"thinking_token_budget": 1, "thinking_budget": 2},
            "thinking_token_budget and thinking_budget: differ",
        ),
    ],
)
def test_a_budget_that_is_none_is_refused(
    client: openai.OpenAI, fields: dict[str, int], error: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=error):
        client.chat.completions.create(**COMMON, messages=QUESTION, extra_body=fields)


def test_log_probabilities_of_responses_are_those_of_the_text(client: openai.OpenAI) -> None:
    """Without those of reasoning and of calls, and in a stream the same."""
    fields: dict[str, Any] = {
        **COMMON,
        "input": "Weather in Lima?",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
    }
    response = client.responses.create(**fields)
    (message,) = [item for item in response.output if item.type == "message"]
    (part,) = message.content
    assert part.type == "output_text" and part.text == "I look."
    assert part.logprobs and "".join(each.token for each in part.logprobs) == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
    assert all(bytes(each.bytes).decode() == each.token for each in part.logprobs)
    streamed, done = [], []
    for event in client.responses.create(**fields, stream=True):
        if event.type == "response.output_text.delta":
            streamed += event.logprobs
        elif event.type == "response.output_text.done":
            done += event.logprobs
    assert [each.token for each in streamed] == [each.token for each in part.logprobs]
    assert [each.logprob for each in done] == [each.logprob for each in part.logprobs]
    del fields["include"]
    response = client.responses.create(**fields)
    assert "top_logprobs: has no effect" in str(response.model_dump()["warnings"])
