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
        if isinstance(delta, ReasoningText) and isinstance(last, ReasoningText):
            joined[-1] = ReasoningText(last.text + delta.text)
        elif isinstance(delta, ContentText) and isinstance(last, ContentText):
            joined[-1] = ContentText(last.text + delta.text)
        elif (
            isinstance(delta, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and delta.index == last.index
        ):
            joined[-1] = ToolCallArguments(delta.index, last.text + delta.text)
        else:
            joined.append(delta)
    return joined
