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


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], r"messages=\[\]: must hold at least one message"),
        ("Hi", "messages='Hi': must be a list such as"),
        (USER, r"messages=\{.*: must be a list such as"),
        (["Hi"], r"messages\[0\]='Hi': must be a message such as"),
        ([{"content": "Hi"}], r"messages\[0\].role=None: must be one of system, developer, user"),
        ([{"role": "robot", "content": "Hi"}], r"messages\[0\].role='robot': must be one of"),
        ([{"role": ["user"], "content": "Hi"}], r"messages\[0\].role=\['user'\]: must be one of"),
        ([USER, {"role": "user"}], r"messages\[1\].content=None: must be text or a list"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content=5: must be text or a list"),
        (
            [{**USER, "tool_call_id": "1"}],
            r"messages\[0\].tool_call_id='1': a message of the role user may have content, name, role",
        ),
        (assistant(content="x", audio={}), r"messages\[1\].audio=\{\}: a message of the role assi"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\].content\[0\].type='image_url': must be 'text': only text is read",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            r"messages\[0\].content\[0\].text=None: must be text",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "", "cache_control": {}}]}],
            r"messages\[0\].content\[0\].cache_control=\{\}: a text part may have type and text",
        ),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content is not Unicode text"),
        (
            [{"role": "user", "content": None}],
            r"messages\[0\].content=None: must be text or a list",
        ),
        (assistant(tool_calls="f"), r"messages\[1\].tool_calls='f': must be a list of tool calls"),
        (assistant(tool_calls=[1]), r"messages\[1\].tool_calls\[0\]=1: must be a tool call"),
        (
            assistant(tool_calls=[{"name": "f", "arguments": {}}]),
            r"messages\[1\].tool_calls\[0\].name='f': a tool call may have id, type and function",
        ),
        (
            assistant(tool_calls=[call({}, type="custom")]),
            r"messages\[1\].tool_calls\[0\].type='custom': must be 'function'",
        ),
        (assistant(tool_calls=[call({"x": deep(64)})]), r"arguments.x\[0\].*: nested too deeply"),
        (assistant(tool_calls=[call({"x": float("nan")})]), r"arguments.x=nan: must be something"),
        (
            assistant(tool_calls=[call({"x": {1}})]),
            r"arguments.x=\{1\}: must be something that JSON",
        ),
        (assistant(tool_calls=[call({1: 2})]), r"arguments=\{1: 2\}: keys must be text, got 1"),
        (
            assistant(reasoning="a", reasoning_content="b"),
            r"messages\[1\].reasoning(_content)?='.': must equal the other name's text",
        ),
    ],
)
def test_what_is_refused(messages: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error) as caught:
        ChatPrompt(messages)
    assert len(str(caught.value)) < 400


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


@pytest.mark.parametrize(
    ("tools", "error"),
    [
        ("f", "tools='f': must be a list of functions"),
        ([function(name="f"), 1], r"tools\[1\]=1: must be"),
        ([{"type": "web_search"}], r"tools\[0\].type='web_search': must be 'function'"),
        ([{"type": "function"}], r"tools\[0\].function=None: must be an object"),
        ([function(name="")], r"tools\[0\].function.name='': must be a function's name"),
        (
            [function(name="f", parameters=[])],
            r"tools\[0\].function.parameters=\[\]: must be a JSON",
        ),
        ([function(name="f", description=1)], r"tools\[0\].function.description=1: must be text"),
        ([function(name="f", parameters={"x": {1}})], r"parameters.x=\{1\}: must be something"),
        ([function(name="f")] * 2, r"tools\[1\].function.name='f': must differ"),
        ([function(name="f")] * 4097, "tools: has 4097 functions; at most 4096 are allowed"),
    ],
)
def test_tools_that_are_refused(tools: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ChatPrompt([USER], tools=tools)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"chat_template": 5}, "chat_template=5: must be text"),
        ({"chat_template_kwargs": ["x"]}, r"chat_template_kwargs=\['x'\]: must be a mapping"),
        (
            {"chat_template_kwargs": {"a b": 1}},
            "chat_template_kwargs: 'a b' is not the name of a variable",
        ),
        (
            {"chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs: tools must be passed by itself",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            "chat_template_kwargs.enable_thinking='false': must be True or False",
        ),
        ({"chat_template_kwargs": {"x": {1}}}, r"chat_template_kwargs.x=\{1\}: must be something"),
        ({"add_generation_prompt": 1}, "add_generation_prompt=1: must be True or False"),
        ({"continue_final_message": 1}, "continue_final_message=1: must be True or False"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt=True: must be False with continue_final_message=True",
        ),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ChatPrompt([USER], **options)


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
