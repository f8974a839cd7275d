"""Forced tool calls in every protocol, with a model that would not call a tool by itself."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from support.http_server import RunningServer, running_server
from support.scripted_model import scripted_engine

pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Lima"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "additionalProperties": False}
WRONG_SCHEMA = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
QUESTION: list[Any] = [{"role": "user", "content": "Weather in Lima?"}]
ARGUMENTS = {"weather": {"city": "Lima"}, "clock": {}}
COMMON: dict[str, Any] = {"model": "tested", "temperature": 0, "max_tokens": 100}
RELUCTANT = "<think>Hm.</think>I do not know."
# The arguments break the schema, and the tags are right
CARELESS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def tools(**parameters: Any) -> list[Any]:
    schemas = {"weather": CITY, "clock": NOTHING, **parameters}
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in schemas.items()
    ]


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(scripted_engine(RELUCTANT)) as running:
        yield running
        running.wait_until_idle()


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
    ]


def test_a_required_call_is_made_and_valid(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        **COMMON, messages=QUESTION, tools=tools(), tool_choice="required", n=2
    )
    for choice in reply.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert calls_of(choice.message)
        assert all(ARGUMENTS[name] == given for name, given in calls_of(choice.message))


@pytest.mark.parametrize("name", ["weather", "clock"])
def test_a_named_call_is_the_only_one_and_ends_with_stop(client: openai.OpenAI, name: str) -> None:
    fields: dict[str, Any] = {
        **COMMON,
        "messages": QUESTION,
        "tools": tools(),
        "tool_choice": named(name),
    }
    (choice,) = client.chat.completions.create(**fields).choices
    assert choice.finish_reason == "stop"
    assert calls_of(choice.message) == [(name, ARGUMENTS[name])]
    arguments, reason = "", None
    for chunk in client.chat.completions.create(**fields, stream=True):
        (part,) = chunk.choices
        assert not part.delta.content
        for call in part.delta.tool_calls or ():
            assert call.index == 0
            arguments += call.function.arguments or ""
        reason = part.finish_reason
    assert (json.loads(arguments), reason) == (ARGUMENTS[name], "stop")


def test_reasoning_that_the_prompt_has_begun_does_not_swallow_the_call(
    client: openai.OpenAI,
) -> None:
    fields: dict[str, Any] = {
        **COMMON,
        "messages": [*QUESTION, {"role": "assistant", "content": "<think>I look"}],
        "tools": tools(),
        "tool_choice": named("clock"),
        "extra_body": {"continue_final_message": True},
    }
    (choice,) = client.chat.completions.create(**fields).choices
    assert calls_of(choice.message) == [("clock", {})]


def test_responses_and_messages_force_calls_too(
    client: openai.OpenAI, server: RunningServer
) -> None:
    flat: Any = [{"type": "function", **tool["function"], "strict": False} for tool in tools()]
    for choice in ("required", {"type": "function", "name": "weather"}):
        response: Any = client.responses.create(
            model="tested",
            input="Weather?",
            temperature=0,
            tools=flat,
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        (call,) = response.output
        assert json.loads(call.arguments) == ARGUMENTS[call.name]
        assert response.status == "completed"
    own: Any = [
        {"name": "weather", "input_schema": CITY},
        {"name": "clock", "input_schema": NOTHING},
    ]
    wanted: list[dict[str, Any]] = [{"type": "any"}, {"type": "tool", "name": "weather"}]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as messages:
        for choice in wanted:
            fields: dict[str, Any] = {
                "model": "tested",
                "max_tokens": 100,
                "messages": QUESTION,
                "tools": own,
                "tool_choice": {**choice, "disable_parallel_tool_use": True},
            }
            fields["extra_body"] = {"temperature": 0}
            whole: Any = messages.messages.create(**fields)
            with messages.messages.stream(**fields) as stream:
                streamed: Any = stream.get_final_message()
            for message in (whole, streamed):
                (call,) = message.content
                assert call.input == ARGUMENTS[call.name]
                assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)


def test_auto_is_free_unless_a_tool_is_strict() -> None:
    strict = tools()
    strict[0]["function"]["strict"] = True
    with (
        running_server(scripted_engine(CARELESS)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as messages,
    ):
        for offered, city in ((tools(), "Rome"), (strict, "Lima")):
            reply = client.chat.completions.create(
                **COMMON, messages=QUESTION, tools=offered, parallel_tool_calls=False
            )
            (call,) = calls_of(reply.choices[0].message)
            assert call == ("weather", {"city": city})
        for is_strict, city in ((False, "Rome"), (True, "Lima")):
            message: Any = messages.messages.create(
                model="tested",
                max_tokens=100,
                messages=QUESTION,
                tools=[{"name": "weather", "input_schema": CITY, "strict": is_strict}],
                tool_choice={"type": "auto", "disable_parallel_tool_use": True},
                extra_body={"temperature": 0},
            )
            assert message.content[0].input == {"city": city}
        server.wait_until_idle()


@pytest.mark.parametrize("is_single", [False, True])
def test_a_single_call_where_one_is_required(is_single: bool) -> None:
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    with (
        running_server(scripted_engine(call * 2)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as messages,
    ):
        (choice,) = client.chat.completions.create(
            **COMMON,
            messages=QUESTION,
            tools=tools(),
            tool_choice="required",
            parallel_tool_calls=not is_single,
        ).choices
        message = messages.messages.create(
            model="tested",
            max_tokens=100,
            messages=QUESTION,
            tools=[{"name": "clock", "input_schema": NOTHING}],
            tool_choice={"type": "any", "disable_parallel_tool_use": is_single},
            extra_body={"temperature": 0},
        )
        num_calls = 1 if is_single else 2
        assert calls_of(choice.message) == [("clock", {})] * num_calls
        assert [part.type for part in message.content] == ["tool_use"] * num_calls
        server.wait_until_idle()


def test_with_a_format_and_tools_the_answer_is_calls_or_has_the_format(
    client: openai.OpenAI,
) -> None:
    """The script decides which: its text begins as a call, or not."""
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    fields: dict[str, Any] = {
        **COMMON,
        "messages": QUESTION,
        "tools": tools(),
        "response_format": schema,
        "parallel_tool_calls": False,
    }
    for script, is_call in ((CARELESS, True), ('{"city": "Rome"}', False)):
        with (
            running_server(scripted_engine(script)) as server,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as own,
        ):
            (choice,) = own.chat.completions.create(**fields).choices
            if is_call:
                assert calls_of(choice.message) == [("weather", {"city": "Rome"})]  # not strict
                assert choice.finish_reason == "tool_calls"
            else:
                assert json.loads(choice.message.content or "") == {"city": "Lima"}
                assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
            server.wait_until_idle()
    del fields["response_format"]
    with pytest.raises(openai.BadRequestError, match="only JSON formats are served"):
        client.chat.completions.create(
            **fields, extra_body={"structured_outputs": {"choice": ["Yes", "No"]}}
        )


def test_a_strict_tool_need_not_be_called(client: openai.OpenAI) -> None:
    strict = tools()
    strict[0]["function"]["strict"] = True
    (choice,) = client.chat.completions.create(**COMMON, messages=QUESTION, tools=strict).choices
    assert (choice.message.content, choice.finish_reason) == ("I do not know.", "stop")
    assert choice.message.model_dump()["reasoning"] == "Hm."


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": tools(), "tool_choice": "always"}, "tool_choice", "must be 'auto'"),
        ({"tools": tools(), "tool_choice": named("x")}, "tool_choice", "'x' is none of the tools"),
        (
            {"tools": tools(), "tool_choice": {"type": "function", "function": "x"}},
            "tool_choice",
            "must be 'auto'",
        ),
        ({"tools": tools(weather=WRONG_SCHEMA), "tool_choice": "required"}, "tools", "not"),
    ],
)
def test_a_choice_that_cannot_be_enforced_is_refused(
    client: openai.OpenAI, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**COMMON, messages=QUESTION, **fields)
    assert refused.value.param == param
    assert message in str(refused.value)


def test_a_forced_call_leaves_a_format_without_effect_and_says_so(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        **COMMON,
        messages=QUESTION,
        tools=tools(),
        tool_choice=named("clock"),
        response_format={"type": "json_object"},
    )
    (warning,) = reply.model_dump()["warnings"]
    assert warning.startswith("response_format: has no effect")


# Shows tools, and says nothing of how calls are written
UNKNOWN_CALLS = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"


def test_where_no_grammar_of_calls_is_known_a_choice_is_refused_and_a_wish_warned_of() -> None:
    strict = tools()
    strict[0]["function"]["strict"] = True
    body = {**COMMON, "messages": QUESTION, "tools": tools(), "max_tokens": 2}
    with running_server(scripted_engine("Yes.", chat_template=UNKNOWN_CALLS)) as server:
        for fields, field in (
            ({"tool_choice": "required"}, "tool_choice"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
        ):
            reply = server.post("/v1/chat/completions", {**body, **fields})
            assert (reply.status, reply.json["error"]["param"]) == (400, field)
            assert (
                "no grammar is known" in reply.body.decode()
                or "only if a grammar" in reply.body.decode()
            )
        for fields, fields_of_warnings in (
            ({}, None),
            ({"tool_choice": "none", "parallel_tool_calls": False}, None),
            ({"parallel_tool_calls": False}, ["parallel_tool_calls"]),
            ({"tools": strict}, ["tools"]),
            ({"tools": strict, "parallel_tool_calls": False}, ["tools", "parallel_tool_calls"]),
        ):
            reply = server.post("/v1/chat/completions", {**body, **fields})
            warned = reply.json.get("warnings")
            assert (warned and [line.partition(":")[0] for line in warned]) == fields_of_warnings
        server.wait_until_idle()
