"""Messages as clients send them: what a model cannot read is left out, with a warning.

Clients send back an assistant's message with all keys that their library added, and images to a model that reads text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.inputs.conversation import KEYS_BY_ROLE
from pellucid.server.fields import warn_of_unknown_keys
from pellucid.server.protocols.parts import part_text

# Left in, so that they are refused: without them the conversation would be another one
_REFUSED = frozenset({"audio", "function_call", "images"})
_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})
_PART_KEYS = frozenset({"type", "text"})


def readable_messages(messages: Sequence[Any], warnings: list[str]) -> list[Any]:
    """Copies of messages without the keys that are not read, with text for parts of other types.

    Args:
        messages: as a client sent them. What is wrong with them otherwise is left for their check.
        warnings: gets a line for each key that is left out and has a value, and for each kind of part.

    Raises:
        ApiError: a part has no text, though its type is one of text.
    """
    return [_message(message, warnings) for message in messages]


def _message(message: Any, warnings: list[str]) -> Any:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or role not in KEYS_BY_ROLE:
        return message
    kept = _kept(message, KEYS_BY_ROLE[role], "messages", warnings)
    if isinstance(content := kept.get("content"), list):
        kept["content"] = [_part(part, warnings) for part in content]
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call, warnings) for call in calls]
    return kept


def _part(part: Any, warnings: list[str]) -> Any:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        return part
    if part["type"] == "text":
        return _kept(part, _PART_KEYS, "messages.content", warnings)
    return {"type": "text", "text": part_text(part, "messages.content", warnings)}


def _call(call: Any, warnings: list[str]) -> Any:
    if not isinstance(call, Mapping):
        return call
    kept = _kept(call, _CALL_KEYS, "messages.tool_calls", warnings)
    if isinstance(function := kept.get("function"), Mapping):
        kept["function"] = _kept(function, _FUNCTION_KEYS, "messages.tool_calls", warnings)
    return kept


def _kept(
    given: Mapping[str, Any], known: "frozenset[str]", where: str, warnings: list[str]
) -> dict[str, Any]:
    known = known | _REFUSED
    warn_of_unknown_keys(given, known, where, warnings)
    return {key: value for key, value in given.items() if key in known and value is not None}
