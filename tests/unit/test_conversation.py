"""Messages, tools and template variables: the accepted forms, and the errors for others."""

import copy
from typing import Any

import pytest

from pellucid.inputs.conversation import (
    UNPARSED_ARGUMENTS,
    argument_object,
    checked_messages,
    checked_tools,
)
from pellucid.inputs.prompts import ChatPrompt
from support.refusals import check_refusals

USER = {"role": "user", "content": "Hi"}


def call(arguments: Any, **others: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
        **others,
    }


def test_the_form_of_messages() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
        {"role": "user", "content": "Hi", "name": "Ann", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call('{"x": [1, 2.5, null]}')]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "reasoning": "Hm", "content": "", "tool_calls": []},
    ]
    before = copy.deepcopy(messages)
    assert checked_messages(messages) == (
        {
            "role": "developer",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "user", "content": "Hi", "name": "Ann"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "f", "arguments": {"x": [1, 2.5, None]}},
                    "id": "1",
                }
            ],
            "content": None,
        },
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "reasoning_content": "Hm", "content": ""},
    )
    assert messages == before
    assert checked_messages(checked_messages(messages)) == checked_messages(messages)


@pytest.mark.parametrize("arguments", [None, "", "null", "{}", {}])
def test_no_arguments(arguments: object) -> None:
    message = {"role": "assistant", "tool_calls": [call(arguments)]}
    assert checked_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == {}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def assistant(**keys: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", **keys}]


REFUSED: list[Any] = [
    [],
    "Hi",
    USER,
    ["Hi"],
    [{"content": "Hi"}],
    [{"role": "robot", "content": "Hi"}],
    [{"role": ["user"], "content": "Hi"}],
    [USER, {"role": "user"}],
    [{"role": "user", "content": 5}],
    [{**USER, "tool_call_id": "1"}],
    assistant(content="x", audio={}),
    [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"role": "user", "content": [{"type": "text", "text": "", "cache_control": {}}]}],
    [{"role": "user", "content": "\ud800"}],
    [{"role": "user", "content": None}],
    assistant(tool_calls="f"),
    assistant(tool_calls=[1]),
    assistant(tool_calls=[{"name": "f", "arguments": {}}]),
    assistant(tool_calls=[call({}, type="custom")]),
    assistant(tool_calls=[call({"x": deep(64)})]),
    assistant(tool_calls=[call({"x": float("nan")})]),
    assistant(tool_calls=[call({"x": {1}})]),
    assistant(tool_calls=[call({1: 2})]),
    assistant(reasoning="a", reasoning_content="b"),
]


def test_what_is_refused() -> None:
    check_refusals("message", REFUSED, ChatPrompt)


def test_a_long_value_is_not_repeated_in_its_error() -> None:
    with pytest.raises(ValueError, match=r"\.\.\.: must be one of") as caught:
        ChatPrompt([{"role": "x" * 10**6, "content": ""}])
    assert len(str(caught.value)) < 400


def function(**keys: Any) -> dict[str, Any]:
    return {"type": "function", "function": keys}


def test_tools() -> None:
    tool = function(name="f", description="d", parameters={"type": "object"}, strict=True)
    assert checked_tools([tool]) == (tool,)
    assert checked_tools([]) is None
    assert checked_tools(None) is None
    as_many_as_may_be = [function(name=f"f{number}") for number in range(4096)]
    assert checked_tools(as_many_as_may_be) == tuple(as_many_as_may_be)


REFUSED_TOOLS: list[Any] = [
    "f",
    [function(name="f"), 1],
    [{"type": "web_search"}],
    [{"type": "function"}],
    [function(name="")],
    [function(name="f", parameters=[])],
    [function(name="f", description=1)],
    [function(name="f", parameters={"x": {1}})],
    [function(name="f")] * 2,
    [function(name="f")] * 4097,
]


def test_tools_that_are_refused() -> None:
    check_refusals("tool", REFUSED_TOOLS, lambda tools: ChatPrompt([USER], tools=tools))


REFUSED_OPTIONS: list[dict[str, Any]] = [
    {"chat_template": 5},
    {"chat_template_kwargs": ["x"]},
    {"chat_template_kwargs": {"a b": 1}},
    {"chat_template_kwargs": {"tools": []}},
    {"chat_template_kwargs": {"enable_thinking": "false"}},
    {"chat_template_kwargs": {"x": {1}}},
    {"add_generation_prompt": 1},
    {"continue_final_message": 1},
    {"continue_final_message": True, "add_generation_prompt": True},
]


def test_options_that_are_refused() -> None:
    check_refusals("chat_option", REFUSED_OPTIONS, lambda options: ChatPrompt([USER], **options))


def test_what_is_continued_needs_content() -> None:
    messages = [USER, {"role": "assistant", "content": ""}]
    with pytest.raises(
        ValueError, match="continue_final_message=True: the final message has no con"
    ):
        ChatPrompt(messages, continue_final_message=True)


def test_the_generation_prompt_is_left_out_where_a_message_is_continued() -> None:
    assert ChatPrompt([USER]).add_generation_prompt is True
    assert ChatPrompt([USER], continue_final_message=True).add_generation_prompt is False


def test_later_changes_of_the_callers_lists_change_nothing() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    prompt = ChatPrompt(messages)
    messages[0]["content"].append({"type": "text", "text": "b"})
    messages.append(USER)
    assert prompt == ChatPrompt([{"role": "user", "content": [{"type": "text", "text": "a"}]}])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('{"x": ', '{"x": '),
        ("[1]", "[1]"),
        ([1, "é"], '[1, "é"]'),
        ('"Lima"', '"Lima"'),
        ("Lima", "Lima"),
        ('{"x": NaN}', '{"x": NaN}'),
        ("[" * 100_000, "[" * 100_000),
        ({UNPARSED_ARGUMENTS: '{"x": '}, '{"x": '),
    ],
)
def test_arguments_that_are_no_object_stay_as_the_model_wrote_them(given: Any, kept: str) -> None:
    message = {"role": "assistant", "tool_calls": [call(given)]}
    assert checked_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == kept
    assert argument_object(kept) == {UNPARSED_ARGUMENTS: kept}


def test_an_assistants_message_may_be_empty() -> None:
    for message in (
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
    ):
        assert checked_messages([message]) == ({"role": "assistant", "content": ""},)
