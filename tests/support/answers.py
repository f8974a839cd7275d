"""Model answers in the format of each family, with the message that each of them means."""

import json
from dataclasses import dataclass
from pathlib import Path
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


CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def _answer(line: str) -> tuple[str, str, str, Message]:
    row = json.loads(line)
    calls = [(name, arguments) for name, arguments in row.get("calls", ())]
    said = (row.get(name, "") for name in ("reasoning", "content"))
    message = Message(*said, calls, complete=row.get("complete", True))
    return row["parser"], row["prompt"], row["answer"], message


# parser, end of the prompt, answer, message
_LINES = Path(__file__).with_name("answers.jsonl").read_text("utf-8").splitlines()
ANSWERS = [_answer(line) for line in _LINES]
