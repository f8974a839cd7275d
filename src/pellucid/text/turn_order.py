"""Puts messages into an order that a chat template takes, found by rendering small conversations."""

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from pellucid.inputs.conversation import Message

Messages: TypeAlias = list[dict[str, Any]]
Roles: TypeAlias = tuple[str, str]  # of two neighbours

# Stand for the roles of the neighbours of the first and the last message, the system message aside
_START, _END = "start", "end"
_SYSTEM_ROLES = ("system", "developer")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")  # the only form that Mistral's templates take
_FIRST, _SECOND = "the-first-text", "the-second-text"
_LONG_IDS = ("toolu_01ABCdefGHIjklMNOpqrSTUv",)
_SHORT_IDS = ("call00001", "call00002")


class TurnOrder(Struct, frozen=True):
    """The orders of messages that a template takes.

    Attributes:
        takes_later_system: system messages may stand behind the beginning.
        refused: neighbours that the template refuses, or does not write both.
        takes_several_calls: an assistant's message may have more than one tool call.
        takes_reasoning_text_and_calls: an assistant's message may have all three.
        takes_long_call_ids: ids of tool calls may have any length.
    """

    takes_later_system: bool
    refused: frozenset[Roles]
    takes_several_calls: bool
    takes_reasoning_text_and_calls: bool
    takes_long_call_ids: bool


def find_order(render: Callable[[Messages], str]) -> TurnOrder:
    """Renders small conversations until it is clear which orders a template takes.

    Args:
        render: a conversation as text; "" if the template refuses it.
    """

    def takes(before: Messages, added: Messages, wanted: Sequence[str] = (_SECOND,)) -> bool:
        """Whether messages may follow others. True as well if the template does not take the others by themselves: then
        no order helps."""
        if before and _FIRST not in render(before):
            return True
        text = render([*before, *added])
        return all(part in text for part in ([_FIRST, *wanted] if before else wanted))

    user, question = _message("user", _FIRST), _message("user", "the-question")
    called = [question, _calls(_SHORT_IDS[:1]), _result(_SHORT_IDS[0], _FIRST)]
    befores = {
        "user": [user],
        "assistant": [question, _message("assistant", _FIRST)],
        "tool": called,
    }
    pairs = {
        (role, next_role): takes(befores[role], [_message(next_role, _SECOND)])
        for role, next_role in (("user", "user"), ("tool", "user"), ("assistant", "assistant"))
    }
    pairs[_START, "assistant"] = takes([], [_message("assistant", _SECOND), question])
    pairs[_START, _END] = takes([], [_message("system", _SECOND)])
    later_system = _message("system", _SECOND)
    call, results = _calls(_SHORT_IDS[:1]), [_result(call_id, _SECOND) for call_id in _SHORT_IDS]
    takes_calls = takes([user], [call, results[0]])
    reasoned = {**call, "content": "the-text", "reasoning_content": "the-reasoning"}
    several, long_call = _calls(_SHORT_IDS), [_calls(_LONG_IDS), _result(_LONG_IDS[0], _SECOND)]
    return TurnOrder(
        takes_later_system=takes(befores["user"], [later_system])
        and takes(befores["assistant"], [later_system, question])
        and takes(befores["tool"], [later_system]),
        refused=frozenset(pair for pair, is_taken in pairs.items() if not is_taken),
        takes_several_calls=not takes_calls
        or takes([user], [several, *results], (_SECOND, _function(1))),
        takes_reasoning_text_and_calls=not takes_calls or takes([user], [reasoned, results[0]]),
        takes_long_call_ids=not takes_calls or takes([user], long_call),
    )


def in_order(messages: Sequence[Message], order: TurnOrder, developer_role: str) -> Messages:
    """Messages in an order that a template takes.

    Nothing is lost, and nothing moves to the front: there it would change the prompt from its beginning, and the prefix
    cache would find nothing.

    - System and developer messages at the beginning become one.
    - A later system message that the template does not take becomes a user's message that `marked_system` marks.
    - A message that must not follow its neighbour is joined to it: a user's to a user's or to the result of a tool,
      an assistant's to an assistant's. An empty user's message is added where the template needs one.
    - Calls that must not stand in one message get messages of their own, each before its results. Text that must not
      stand beside reasoning and a call is joined to the reasoning.
    - Ids of calls get the form that the template takes.

    Args:
        developer_role: the role of a developer's message at the beginning.
    """
    arranged, others = _with_one_system(messages, developer_role)
    if not order.takes_reasoning_text_and_calls:
        others = [_with_text_in_reasoning(message) for message in others]
    if not order.takes_long_call_ids:
        others = _with_short_ids(others)
    if not order.takes_several_calls:
        others = _with_single_calls(others)
    groups = [[message] for message in arranged]  # each becomes one message
    previous = _START
    for message in others:
        if message["role"] in _SYSTEM_ROLES:
            message = _later_system(message, order)
        role = message["role"]
        if (previous, role) not in order.refused:
            groups.append([message])
        elif previous == _START:
            groups += [[_message("user", "")], [message]]
        else:
            groups[-1].append(message)
            role = previous
        previous = role
    if (previous, _END) in order.refused:
        groups.append([_message("user", "")])
    return [_joined(group) for group in groups]


def marked_system(text: str) -> str:
    """The text of a system message that stands in a user's message."""
    return f"<system>\n{text}\n</system>"


def as_text(content: str | list[dict[str, str]] | None) -> str:
    """The text of a message's content."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)


def as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _with_one_system(messages: Sequence[Message], developer_role: str) -> tuple[Messages, Messages]:
    """The message that the system messages at the beginning become, if any, and the other messages."""
    num_leading = 0
    while num_leading < len(messages) and messages[num_leading]["role"] in _SYSTEM_ROLES:
        num_leading += 1
    leading, others = messages[:num_leading], [dict(message) for message in messages[num_leading:]]
    if not leading:
        return [], others
    is_developers = any(message["role"] == "developer" for message in leading)
    first = {**leading[0], "role": developer_role if is_developers else "system"}
    if len(leading) > 1:
        first["content"] = "\n\n".join(as_text(message["content"]) for message in leading)
    return [first], others


def _later_system(message: Message, order: TurnOrder) -> dict[str, Any]:
    if order.takes_later_system:
        return {**message, "role": "system"}
    return {**message, "role": "user", "content": marked_system(as_text(message["content"]))}


def _joined(group: Messages) -> dict[str, Any]:
    """Several messages as one, in the role of the first."""
    first = group[0]
    if len(group) == 1:
        return first
    joined = {key: value for message in reversed(group) for key, value in message.items()}
    contents = [message["content"] for message in group if message["content"]]
    if all(isinstance(content, str) for content in contents):
        joined["content"] = "\n\n".join(contents) or first["content"]
    else:
        joined["content"] = [
            part
            for content in contents
            for part in (as_parts(content) if isinstance(content, str) else content)
        ]
    if calls := [call for message in group for call in message.get("tool_calls") or ()]:
        joined["tool_calls"] = calls
    reasoning = [
        message["reasoning_content"] for message in group if "reasoning_content" in message
    ]
    if reasoning:
        joined["reasoning_content"] = "\n\n".join(reasoning)
    return joined


def _with_text_in_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    if not (message.get("tool_calls") and message.get("reasoning_content") and message["content"]):
        return message
    reasoning = f"{message['reasoning_content']}\n\n{as_text(message['content'])}"
    return {**message, "reasoning_content": reasoning, "content": None}


def _with_single_calls(messages: Messages) -> Messages:
    """Each tool call in a message of its own, before its result."""
    arranged: Messages = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            arranged.append(message)
            continue
        results: Messages = []
        while position < len(messages) and messages[position]["role"] == "tool":
            results.append(messages[position])
            position += 1
        by_id: defaultdict[str | None, deque[dict[str, Any]]] = defaultdict(deque)
        for result in results:
            by_id[result.get("tool_call_id")].append(result)
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": "assistant", "content": None}
            arranged.append({**first, "tool_calls": [call]})
            if own := by_id[call.get("id")]:
                arranged.append(own.popleft())
        arranged += (result for unclaimed in by_id.values() for result in unclaimed)
    return arranged


def _with_short_ids(messages: Iterable[Message]) -> Messages:
    """Ids of nine letters and digits, also for calls and results without one."""
    arranged: Messages = []
    unanswered: deque[str] = deque()  # of calls, in their order
    num_calls = 0
    for message in messages:
        message = dict(message)
        if calls := message.get("tool_calls"):
            numbered = []
            for call in calls:
                num_calls += 1
                numbered.append({**call, "id": _short_id(call.get("id") or str(num_calls))})
            message["tool_calls"] = numbered
            unanswered = deque(call["id"] for call in numbered)
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            if given is not None:
                message["tool_call_id"] = _short_id(given)
            elif unanswered:
                message["tool_call_id"] = unanswered.popleft()
        arranged.append(message)
    return arranged


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _calls(call_ids: Sequence[str]) -> dict[str, Any]:
    """An assistant's calls of different functions."""
    calls = [
        {"id": call_id, "type": "function", "function": {"name": _function(n), "arguments": {}}}
        for n, call_id in enumerate(call_ids)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _function(number: int) -> str:
    return f"the-function-{number}"
