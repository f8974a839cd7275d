"""Deltas of an answer: more reasoning, more content, or a piece of a tool call."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningText:
    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call ends. It is not complete if the answer ended first, or what the model wrote is not valid."""

    index: int
    complete: bool


ResponseDelta: TypeAlias = (
    ReasoningText | ContentText | ToolCallStart | ToolCallArguments | ToolCallEnd
)


def merged(deltas: list[ResponseDelta]) -> list[ResponseDelta]:
    """The same deltas, neighbours of one kind joined."""
    if len(deltas) < 2:
        return deltas
    joined: list[ResponseDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        match last, delta:
            case ReasoningText(before), ReasoningText(text):
                joined[-1] = ReasoningText(before + text)
            case ContentText(before), ContentText(text):
                joined[-1] = ContentText(before + text)
            case ToolCallArguments(index, before), ToolCallArguments(same, text) if index == same:
                joined[-1] = ToolCallArguments(index, before + text)
            case _:
                joined.append(delta)
    return joined
