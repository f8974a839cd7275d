"""Model answers in the format of each family, with the message that each of them means."""

import json
from dataclasses import dataclass
from typing import Any

from pellucid.text.responses.deltas import (
    ContentText,
    ReasoningText,
    ResponseDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"type": ["string", "null"]},
                    "where": {"type": "object"},
                    "now": {"type": "boolean"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
]


@dataclass
class Message:
    """What deltas add up to."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, Any]] | None = None
    complete: bool = True


def message_of(deltas: list[ResponseDelta]) -> Message:
    """Checks on its way that calls begin, go on and end in order."""
    message = Message(calls=[])
    names: list[str] = []
    arguments: list[str] = []
    open_call: int | None = None
    for delta in deltas:
        if isinstance(delta, ReasoningText):
            message.reasoning += delta.text
        elif isinstance(delta, ContentText):
            message.content += delta.text
        elif isinstance(delta, ToolCallStart):
            assert open_call is None and delta.index == len(names)
            open_call = delta.index
            names.append(delta.name)
            arguments.append("")
        elif isinstance(delta, ToolCallArguments):
            assert open_call == delta.index
            arguments[-1] += delta.text
        else:
            assert isinstance(delta, ToolCallEnd) and open_call == delta.index
            open_call = None
            message.complete &= delta.complete
    assert open_call is None
    for name, text in zip(names, arguments, strict=True):
        assert message.calls is not None
        message.calls.append((name, json.loads(text) if message.complete else text))
    return message


PARIS = ("get_weather", {"city": "Paris", "days": 2})
ADD = ("add", {"a": 1, "b": [2, {"c": "}"}]})
CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

# family, end of the prompt, answer, message
ANSWERS: list[tuple[str, str, str, Message]] = [
    ("text", "", " <think>\nplain ", Message(content=" <think>\nplain ", calls=[])),
    (
        "hermes",
        CHATML,
        (
            "<think>\nLet me see.\n</think>\n\nSure.\n<tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
            '<tool_call>{"arguments": {"a": 1, "b": [2, {"c": "}"}]}, "name": "add"}</tool_call>'
        ),
        Message("Let me see.", "Sure.", [PARIS, ADD]),
    ),
    # the chat template has opened, or closed, the reasoning
    ("hermes", f"{CHATML}<think>\n", "Hm.\n</think>\n\nHi!", Message("Hm.", "Hi!", [])),
    ("hermes", f"{CHATML}<think>\n\n</think>\n\n", "Hi <b>!", Message("", "Hi <b>!", [])),
    # the prompt begins the answer, and the answer goes on
    ("hermes", f"{CHATML}The answer is ", "42.", Message("", "42.", [])),
    ("hermes", f"{CHATML}The answer is", " 42.\n", Message("", " 42.", [])),
    # an earlier turn says nothing about this one
    ("hermes", f"{CHATML}<think>never closed\n{CHATML}", "Hi", Message("", "Hi", [])),
    # no call, or one that is cut off
    ("hermes", CHATML, "<tool_call>no call</tool_call>", Message("", "<tool_call>no call", [])),
    (
        "hermes",
        CHATML,
        '<tool_call>{"name": "add", "arguments": {"a": 1',
        Message("", "", [("add", '{"a": 1')], complete=False),
    ),
    (
        "hermes",
        CHATML,
        (
            '<tool_call>{"name": "add"}</tool_call><tool_call>{"name": "add", "arguments": null}</tool_call>'
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
        ),
        Message("", "", [("add", {}), ("add", {}), ("add", {"a": 1})]),
    ),
    ("hermes", CHATML, "a < b <tool> <tool_cal", Message("", "a < b <tool> <tool_cal", [])),
    (
        "qwen3_coder",
        CHATML,
        (
            "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n<parameter=units>\nnull\n</parameter>\n<parameter=where>\n"
            '{"lat": 1.5}\n</parameter>\n<parameter=now>\nTrue\n</parameter>\n</function>\n</tool_call>'
            "<tool_call>\n<function=add>\n</function>\n</tool_call>"
        ),
        Message(
            "",
            "I look.",
            [
                (
                    "get_weather",
                    {"city": "Paris", "days": 2, "units": None, "where": {"lat": 1.5}, "now": True},
                ),
                ("add", {}),
            ],
        ),
    ),
    (
        "qwen3_coder",
        CHATML,
        "<tool_call>\n<function=add>\n<parameter=a>\nfirst\n\nlast <b>\n</parameter>\n<parameter=b>\n1",
        Message("", "", [("add", '{"a": "first\\n\\nlast <b>"}')], complete=False),
    ),
    (
        "glm",
        "<|user|>Hi<|assistant|>",
        (
            "<think>Hm</think>Look:<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
        ),
        Message("Hm", "Look:", [PARIS]),
    ),
    (
        "mistral",
        "<s>[INST] Hi[/INST]",
        (
            ' Sure.[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
            '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}, "id": "abcdefghi"}]</s>'
        ),
        Message("", "Sure.", [PARIS, ADD]),
    ),
    (
        "mistral_args",
        "<s>[INST]Hi[/INST]",
        (
            '[THINK]Hm[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]add'
            '[CALL_ID]123[ARGS]{"a": 1, "b": [2, {"c": "}"}]}'
        ),
        Message("Hm", "Sure.", [PARIS, ADD]),
    ),
    (
        "llama3",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
        Message("", "", [PARIS]),
    ),
    (
        "llama3",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1, "b": [2, {"c": "}"}]}}',
        Message("", "", [ADD]),
    ),
    # an answer that is JSON, and no call of a tool that there is
    (
        "llama3",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        '{"name": "Ann", "age": 5}',
        Message("", '{"name": "Ann", "age": 5}', []),
    ),
    (
        "phi4",
        "<|user|>Hi<|end|><|assistant|>",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]<|/tool_call|>',
        Message("", "", [PARIS]),
    ),
    (
        "functiongemma",
        "<start_of_turn>model\n",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>",
        Message("", "", [PARIS]),
    ),
    (
        "gemma4",
        "<|turn>model\n",
        '<|channel>thought\nHm<channel|>Sure.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>, days: 2}<tool_call|>',
        Message("Hm", "Sure.", [PARIS]),
    ),
    (
        "harmony",
        "<|start|>user<|message|>Hi<|end|><|start|>assistant",
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
            "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            '{"city": "Paris", "days": 2}<|call|>'
        ),
        Message("Hm.", "I look.", [PARIS]),
    ),
    (
        "harmony",
        "<|start|>assistant",
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 1, "b": [2, {"c": "}"}]}',
        Message("", "", [ADD]),
    ),
    (
        "harmony",
        "<|start|>assistant",
        "<|channel|>final<|message|>42 is it.<|return|>",
        Message("", "42 is it.", []),
    ),
    ("harmony", "<|start|>assistant", "no channel at all", Message("", "no channel at all", [])),
    (
        "think",
        "<|im_start|>assistant\n<think>\n",
        "a\n\nb </thin</think>c",
        Message("a\n\nb </thin", "c", []),
    ),
]
