"""The forms of messages that a chat template takes, found by rendering small conversations."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pellucid.conversation import Message
from pellucid.text.chat_template import ChatTemplate, RenderingTime, TemplateTimeoutError

_ANSWER = "the-answer-of-the-assistant"
_QUESTION = "the-second-question"
_TURNS: tuple[dict[str, Any], ...] = (
    {"role": "system", "content": "the-system-prompt"},
    {"role": "user", "content": "the-first-question"},
    {"role": "assistant", "content": _ANSWER},
    {"role": "user", "content": _QUESTION},
)
_PARTS = ("the-first-part", "the-second-part")
_FUNCTION, _ARGUMENT = "the-function", "the-argument"
_CALL_ID = "call00001"  # of the form that Mistral's templates ask for
_TOOL = {
    "type": "function",
    "function": {
        "name": _FUNCTION,
        "description": "the-description",
        "parameters": {"type": "object", "properties": {_ARGUMENT: {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class TemplateForms:
    """What a template does with the forms that messages may have.

    Attributes:
        written: a conversation as the template writes it; "" if it takes none of ours.
        after_answer: what it writes after the text of an assistant's message.
        takes_text: content may be text.
        takes_parts: content may be a list of text parts.
        takes_argument_objects: arguments of a tool call may be an object; otherwise only JSON text.
        takes_no_content: the content of a message with tool calls may be None.
    """

    written: str
    after_answer: str
    takes_text: bool
    takes_parts: bool
    takes_argument_objects: bool
    takes_no_content: bool


def find_forms(template: ChatTemplate, time_left: RenderingTime) -> TemplateForms:
    """Renders small conversations until it is clear what a template takes.

    Raises:
        TemplateTimeoutError: no time is left.
    """
    as_text = _first_with(_ANSWER, _renderings(template, time_left, _turns(in_parts=False)))
    as_parts = _first_with(_ANSWER, _renderings(template, time_left, _turns(in_parts=True)))
    written = as_text or as_parts
    takes_objects, takes_no_content = True, True
    if template.mentions("tool_calls"):
        takes_objects, takes_no_content = _tool_call_forms(template, time_left)
    return TemplateForms(
        written=written,
        after_answer=written.partition(_ANSWER)[2],
        takes_text=bool(as_text) or not as_parts,
        takes_parts=all(f"'{part}'" not in as_parts and part in as_parts for part in _PARTS),
        takes_argument_objects=takes_objects,
        takes_no_content=takes_no_content,
    )


def in_forms(
    messages: Sequence[Message], forms: TemplateForms, template: ChatTemplate
) -> list[dict[str, Any]]:
    """Messages in the forms that a template takes.

    As transformers does it, reasoning is given under all the names that templates read. A developer's messages are
    system messages to a template that does not know the role; at the beginning they join the system message.

    Args:
        messages: as `checked_messages` makes them.
        forms: the template's.
        template: decides which names of roles and of reasoning there are.
    """
    adapted = [_in_forms(message, forms, template) for message in messages]
    if not template.mentions("developer"):
        _join_developer_messages(adapted, forms)
    return adapted


def _in_forms(message: Message, forms: TemplateForms, template: ChatTemplate) -> dict[str, Any]:
    adapted = dict(message)
    content = message["content"]
    if isinstance(content, str) and not forms.takes_text:
        adapted["content"] = _as_parts(content)
    elif isinstance(content, list) and not forms.takes_parts:
        adapted["content"] = _as_text(content)
    elif content is None and not forms.takes_no_content:
        adapted["content"] = "" if forms.takes_text else []
    if "tool_calls" in message and not forms.takes_argument_objects:
        adapted["tool_calls"] = [_with_argument_text(call) for call in message["tool_calls"]]
    reasoning = message.get("reasoning_content")
    if reasoning is not None:
        adapted = {"thinking": reasoning, **adapted}
        if template.mentions("reasoning"):
            adapted["reasoning"] = reasoning
    return adapted


def _join_developer_messages(messages: list[dict[str, Any]], forms: TemplateForms) -> None:
    while (
        len(messages) > 1
        and {messages[0]["role"], messages[1]["role"]} <= {"system", "developer"}
        and "developer" in (messages[0]["role"], messages[1]["role"])
    ):
        first, second = messages[:2]
        text = "\n\n".join(_as_text(message["content"]) for message in (first, second))
        messages[:2] = [
            {**first, "role": "developer", "content": text if forms.takes_text else _as_parts(text)}
        ]
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"


def _as_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _with_argument_text(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _turns(in_parts: bool) -> Iterator[list[dict[str, Any]]]:
    """With a system message and without: some templates refuse one."""
    turns = [dict(turn) for turn in _TURNS]
    if in_parts:
        turns = [{**turn, "content": _as_parts(turn["content"])} for turn in turns]
        turns[-1]["content"] = [part for text in _PARTS for part in _as_parts(text)]
    yield turns
    yield turns[1:]


def _tool_call_forms(template: ChatTemplate, time_left: RenderingTime) -> tuple[bool, bool]:
    """Whether arguments may be objects, and content None: the first pair of these that is rendered well."""
    for takes_objects in (True, False):
        for takes_no_content in (True, False):
            arguments = {_ARGUMENT: "the-value"}
            call = {
                "id": _CALL_ID,
                "type": "function",
                "function": {
                    "name": _FUNCTION,
                    "arguments": arguments if takes_objects else json.dumps(arguments),
                },
            }
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "the-first-question"},
                {
                    "role": "assistant",
                    "content": None if takes_no_content else "",
                    "tool_calls": [call],
                },
                {"role": "tool", "tool_call_id": _CALL_ID, "content": "the-result"},
            ]
            text = _first_with(_FUNCTION, _renderings(template, time_left, [messages], [_TOOL]))
            call_text = text.rpartition("the-first-question")[2]
            written_twice = f'\\"{_ARGUMENT}\\"' in call_text
            if _ARGUMENT in call_text and "None" not in call_text and not written_twice:
                return takes_objects, takes_no_content
    return True, True


def _renderings(
    template: ChatTemplate,
    time_left: RenderingTime,
    conversations: Iterable[list[dict[str, Any]]],
    tools: list[dict[str, Any]] | None = None,
) -> Iterator[str]:
    """Those of the conversations that the template takes."""
    for messages in conversations:
        with suppress(_RefusedError):
            yield _render(template, time_left, messages, tools)


def _render(
    template: ChatTemplate,
    time_left: RenderingTime,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> str:
    try:
        return template.render(messages, False, tools, time_left=time_left)
    except TemplateTimeoutError:
        raise
    except ValueError as error:
        raise _RefusedError from error


class _RefusedError(Exception):
    """A template does not take a conversation."""


def _first_with(text: str, renderings: Iterator[str]) -> str:
    return next((rendering for rendering in renderings if text in rendering), "")
