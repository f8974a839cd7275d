"""Checks the messages and tools of a conversation."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from pellucid.inputs.parameter_checks import check_text, shown

# {"role": "user", "content": "..."}; the keys are those of OpenAI's chat completions
Message: TypeAlias = Mapping[str, Any]
# {"type": "function", "function": {"name": ..., "description": ..., "parameters": JSON schema}}
Tool: TypeAlias = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOOLS = 4096
MAX_DEPTH = 64  # of lists and objects within each other
UNPARSED_ARGUMENTS = "unparsed_arguments"  # the key of arguments that are no object
KEYS_BY_ROLE = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {"role", "content", "name", "tool_calls", "reasoning_content", "reasoning"}
    ),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}


def checked_messages(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """A copy of a conversation, in one form.

    A key whose value is None counts as left out, except the content of an assistant's message: None with tool calls,
    and empty text without. The arguments of a tool call become an object, or stay text if they are none; the two names
    of reasoning become one: `reasoning_content`.

    Raises:
        ValueError: names the message, the key, the value and what is allowed.
    """
    _check_list(messages, "messages", 'must be a list such as [{"role": "user", "content": "Hi"}]')
    if not messages:
        _refuse("messages", messages, "must hold at least one message")
    return tuple(
        _checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)
    )


def checked_tools(tools: Sequence[Tool] | None) -> tuple[dict[str, Any], ...] | None:
    """A copy of the functions that a model may call; None for none.

    Raises:
        ValueError: names the tool, the key, the value and what is allowed.
    """
    if tools is None:
        return None
    _check_list(tools, "tools", "must be a list of functions")
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"tools: has {len(tools)} functions; at most {MAX_TOOLS} are allowed")
    checked = tuple(_checked_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(checked):
        name = tool["function"]["name"]
        if name in seen:
            _refuse(
                f"tools[{index}].function.name", name, "must differ from the other tools' names"
            )
        seen.add(name)
    return checked or None


def checked_json(value: Any, name: str) -> Any:
    """A copy of a value that JSON can write: text without lone surrogates, finite numbers.

    Raises:
        ValueError: names what it cannot.
    """
    return _checked_json(value, name, MAX_DEPTH)


def argument_object(text: str) -> dict[str, Any]:
    """The arguments of a tool call as an object. Text that is none stays whole, under the name `UNPARSED_ARGUMENTS`."""
    if not text:
        return {}
    try:
        value = checked_json(json.loads(text), "arguments")
    except (RecursionError, ValueError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED_ARGUMENTS: text}


def num_characters(value: Any) -> int:
    """Of all text within lists and mappings, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + num_characters(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(num_characters, value))
    return 0


def _checked_message(message: Message, name: str) -> dict[str, Any]:
    _check_object(message, name, 'must be a message such as {"role": "user", "content": "Hi"}')
    role = message.get("role")
    if role not in ROLES:
        _refuse(f"{name}.role", role, f"must be one of {', '.join(ROLES)}")
    given = {key: value for key, value in message.items() if value is not None}
    for key in given:
        if key not in KEYS_BY_ROLE[role]:
            allowed = ", ".join(sorted(KEYS_BY_ROLE[role]))
            _refuse(f"{name}.{key}", given[key], f"a message of the role {role} may have {allowed}")
    checked: dict[str, Any] = {}
    for key in message:
        if key == "content" and "content" in given:
            checked["content"] = _checked_content(given["content"], f"{name}.content")
        elif key == "tool_calls" and given.get("tool_calls"):
            calls, calls_name = given[key], f"{name}.tool_calls"
            _check_list(calls, calls_name, "must be a list of tool calls")
            checked["tool_calls"] = [
                _checked_tool_call(call, f"{calls_name}[{i}]") for i, call in enumerate(calls)
            ]
        elif key in ("reasoning_content", "reasoning") and key in given:
            reasoning = _checked_text(given[key], f"{name}.{key}")
            if checked.setdefault("reasoning_content", reasoning) != reasoning:
                _refuse(
                    f"{name}.{key}", reasoning, "must equal the other name's text, or be left out"
                )
        elif key in given and key != "tool_calls":
            checked[key] = _checked_text(given[key], f"{name}.{key}")
    if "content" not in checked:
        if role != "assistant":
            _refuse(f"{name}.content", None, "must be text or a list of text parts")
        checked["content"] = None if "tool_calls" in checked else ""
    return checked


def _checked_content(content: Any, name: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return _checked_text(content, name)
    _check_list(content, name, "must be text or a list of text parts")
    parts = []
    for index, part in enumerate(content):
        part_name = f"{name}[{index}]"
        if isinstance(part, str):
            parts.append({"type": "text", "text": _checked_text(part, part_name)})
            continue
        _check_object(part, part_name, 'must be a part such as {"type": "text", "text": "Hi"}')
        if part.get("type") != "text":
            _refuse(f"{part_name}.type", part.get("type"), "must be 'text': only text is read")
        _refuse_others(part, {"type", "text"}, part_name, "a text part may have type and text")
        parts.append({"type": "text", "text": _checked_text(part.get("text"), f"{part_name}.text")})
    return parts


def _checked_tool_call(call: Any, name: str) -> dict[str, Any]:
    _check_object(call, name, "must be a tool call with the keys id, type and function")
    allowed = {"id", "type", "function", "index"}
    _refuse_others(call, allowed, name, "a tool call may have id, type and function")
    if call.get("type", "function") != "function":
        _refuse(f"{name}.type", call["type"], "must be 'function'")
    function, inner = call.get("function"), f"{name}.function"
    _check_object(function, inner, "must be an object with name and arguments")
    allowed = {"name", "arguments"}
    _refuse_others(function, allowed, inner, "a call's function may have name and arguments")
    checked: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": _checked_name(function.get("name"), f"{inner}.name"),
            "arguments": _checked_arguments(function.get("arguments"), f"{inner}.arguments"),
        },
    }
    if call.get("id") is not None:
        checked["id"] = _checked_text(call["id"], f"{name}.id")
    return checked


def _checked_arguments(arguments: Any, name: str) -> dict[str, Any] | str:
    """An object; or text, if a model wrote something else: a limit may have cut off its call.

    Clients send "", null or nothing for the arguments of a function that takes none.
    """
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, Mapping):
        if tuple(arguments) == (UNPARSED_ARGUMENTS,):
            return _checked_text(arguments[UNPARSED_ARGUMENTS], f"{name}.{UNPARSED_ARGUMENTS}")
        checked: dict[str, Any] = checked_json(arguments, name)
        return checked
    if not isinstance(arguments, str):
        return json.dumps(checked_json(arguments, name), ensure_ascii=False)
    try:
        value = json.loads(arguments)
        if value is None or isinstance(value, Mapping):
            return _checked_arguments(value, name)
    except (RecursionError, ValueError):
        pass
    return _checked_text(arguments, name)


def _checked_tool(tool: Any, name: str) -> dict[str, Any]:
    _check_object(tool, name, 'must be {"type": "function", "function": {...}}')
    if tool.get("type") != "function":
        _refuse(f"{name}.type", tool.get("type"), "must be 'function'")
    function = tool.get("function")
    _check_object(function, f"{name}.function", "must be an object with name and parameters")
    _checked_name(function.get("name"), f"{name}.function.name")
    if function.get("description") is not None:
        _checked_text(function["description"], f"{name}.function.description")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        _refuse(f"{name}.function.parameters", parameters, "must be a JSON schema")
    checked: dict[str, Any] = checked_json(tool, name)
    return checked


def _checked_name(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        _refuse(name, value, "must be a function's name")
    return _checked_text(value, name)


def _checked_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        _refuse(name, value, "must be text")
    check_text(value, name)
    return value


def _checked_json(value: Any, name: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _checked_text(value, name)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if depth == 0:
        raise ValueError(f"{name}: nested too deeply; at most {MAX_DEPTH} levels are allowed")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                _refuse(name, value, f"keys must be text, got {key!r}")
            check_text(key, f"{name}: key {shown(key)}")
        return {key: _checked_json(item, f"{name}.{key}", depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [
            _checked_json(item, f"{name}[{index}]", depth - 1) for index, item in enumerate(value)
        ]
    return _refuse(name, value, "must be something that JSON can write")


def _check_list(value: Any, name: str, allowed: str) -> None:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        _refuse(name, value, allowed)


def _check_object(value: Any, name: str, allowed: str) -> None:
    if not isinstance(value, Mapping):
        _refuse(name, value, allowed)


def _refuse_others(value: Mapping[str, Any], keys: set[str], name: str, allowed: str) -> None:
    for key, item in value.items():
        if key not in keys and item is not None:
            _refuse(f"{name}.{key}", item, allowed)


def _refuse(name: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{name}={shown(value)}: {allowed}")
