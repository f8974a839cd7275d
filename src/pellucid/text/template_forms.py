"""The forms of messages that a chat template takes, found by rendering small conversations."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pellucid.inputs.conversation import Message, argument_object
from pellucid.text.chat_template import ChatTemplate, RenderingTime, TemplateTimeoutError
from pellucid.text.turn_order import TurnOrder, as_parts, as_text, find_order, in_order

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
_ARGUMENTS = {_ARGUMENT: "the-value"}
_CALL_ID = "call00001"  # of the form that Mistral's templates ask for
_TOOL = {
    "type": "function",
    "function": {
        "name": _FUNCTION,
        "description": "the-description",
        "parameters": {"type": "object", "properties": {_ARGUMENT: {"type": "string"}}},
    },
}


class MessageForms(Struct, frozen=True):
    """The forms in which a template takes single messages.

    Attributes:
        takes_text: content may be text.
        takes_parts: content may be a list of text parts.
        takes_argument_objects: arguments of a tool call may be an object.
        takes_argument_text: arguments of a tool call may be text, which is written as it is.
        takes_no_content: the content of a message with tool calls may be None.
    """

    takes_text: bool
    takes_parts: bool
    takes_argument_objects: bool
    takes_argument_text: bool
    takes_no_content: bool


class TemplateForms(Struct, frozen=True):
    """What a template does with the forms that conversations may have.

    Attributes:
        written: a conversation as the template writes it; "" if it takes none of ours.
        after_answer: what it writes after the text of an assistant's message.
        messages: the forms of messages that it takes.
        order: the orders of messages that it takes.
    """

    written: str
    after_answer: str
    messages: MessageForms
    order: TurnOrder


def find_forms(template: ChatTemplate, time_left: RenderingTime) -> TemplateForms:
    """Renders small conversations until it is clear what a template takes.

    Raises:
        TemplateTimeoutError: no time is left.
    """
    as_text = _first_with(_ANSWER, _renderings(template, time_left, _turns(in_parts=False)))
    parts = _first_with(_ANSWER, _renderings(template, time_left, _turns(in_parts=True)))
    written = as_text or parts
    takes_objects, takes_argument_text, takes_no_content = True, True, True
    if template.mentions("tool_calls"):
        takes_objects, takes_no_content = _tool_call_forms(template, time_left)
        arguments = json.dumps(_ARGUMENTS)
        takes_argument_text = not takes_objects or arguments in _written_call(
            template, time_left, arguments, ""
        )
    forms = MessageForms(
        takes_text=bool(as_text) or not parts,
        takes_parts=all(f"'{part}'" not in parts and part in parts for part in _PARTS),
        takes_argument_objects=takes_objects,
        takes_argument_text=takes_argument_text,
        takes_no_content=takes_no_content,
    )

    def rendered(messages: list[dict[str, Any]]) -> str:
        adapted = [_in_forms(message, forms, template) for message in messages]
        return next(_renderings(template, time_left, [adapted]), "")

    return TemplateForms(written, written.partition(_ANSWER)[2], forms, find_order(rendered))


def in_forms(
    messages: Sequence[Message], forms: TemplateForms, template: ChatTemplate
) -> list[dict[str, Any]]:
    """Messages in the order and the forms that a template takes.

    As transformers does it, reasoning is given under all the names that templates read. A developer's messages are
    system messages to a template that does not know the role.

    Args:
        template: decides which names of roles and of reasoning there are.
    """
    developer_role = "developer" if template.mentions("developer") else "system"
    arranged = in_order(messages, forms.order, developer_role)
    return [_in_forms(message, forms.messages, template) for message in arranged]


def _in_forms(message: Message, forms: MessageForms, template: ChatTemplate) -> dict[str, Any]:
    adapted = dict(message)
    content = message["content"]
    if isinstance(content, str) and not forms.takes_text:
        adapted["content"] = as_parts(content)
    elif isinstance(content, list) and not forms.takes_parts:
        adapted["content"] = as_text(content)
    elif content is None and not forms.takes_no_content:
        adapted["content"] = "" if forms.takes_text else []
    if "tool_calls" in message:
        adapted["tool_calls"] = [_call_in_forms(call, forms) for call in message["tool_calls"]]
    reasoning = message.get("reasoning_content")
    if reasoning is not None:
        adapted = {"thinking": reasoning, **adapted}
        if template.mentions("reasoning"):
            adapted["reasoning"] = reasoning
    return adapted


def _call_in_forms(call: Mapping[str, Any], forms: MessageForms) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        if not forms.takes_argument_text:
            arguments = argument_object(arguments)
    elif not forms.takes_argument_objects:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _turns(in_parts: bool) -> Iterator[list[dict[str, Any]]]:
    """With a system message and without: some templates refuse one."""
    turns = [dict(turn) for turn in _TURNS]
    if in_parts:
        turns = [{**turn, "content": as_parts(turn["content"])} for turn in turns]
        turns[-1]["content"] = [part for text in _PARTS for part in as_parts(text)]
    yield turns
    yield turns[1:]


def _tool_call_forms(template: ChatTemplate, time_left: RenderingTime) -> tuple[bool, bool]:
    """Whether arguments may be objects, and content None: the first pair of these that is rendered well."""
    for takes_objects in (True, False):
        for takes_no_content in (True, False):
            arguments = _ARGUMENTS if takes_objects else json.dumps(_ARGUMENTS)
            content = None if takes_no_content else ""
            text = _written_call(template, time_left, arguments, content)
            written_twice = f'\\"{_ARGUMENT}\\"' in text
            if _ARGUMENT in text and "None" not in text and not written_twice:
                return takes_objects, takes_no_content
    return True, True


def _written_call(
    template: ChatTemplate, time_left: RenderingTime, arguments: object, content: str | None
) -> str:
    """A tool call and its result as the template writes them; "" if it refuses them."""
    call = {
        "id": _CALL_ID,
        "type": "function",
        "function": {"name": _FUNCTION, "arguments": arguments},
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "the-first-question"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _CALL_ID, "content": "the-result"},
    ]
    text = _first_with(_FUNCTION, _renderings(template, time_left, [messages], [_TOOL]))
    return text.rpartition("the-first-question")[2]


def _renderings(
    template: ChatTemplate,
    time_left: RenderingTime,
    conversations: Iterable[list[dict[str, Any]]],
    tools: list[dict[str, Any]] | None = None,
) -> Iterator[str]:
    """Those of the conversations that the template takes."""
    for messages in conversations:
        try:
            text = template.render(messages, False, tools, time_left=time_left)
        except TemplateTimeoutError:
            raise
        except ValueError:
            continue
        yield text


def _first_with(text: str, renderings: Iterator[str]) -> str:
    return next((rendering for rendering in renderings if text in rendering), "")
