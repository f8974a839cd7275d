"""Turns the input items of a call to /v1/responses into a conversation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.errors import refused
from pellucid.server.fields import warn_of_unknown_keys
from pellucid.server.protocols.conversation import ConversationBuilder, function_call
from pellucid.server.protocols.openai_responses_api.fields import ConversationFields
from pellucid.server.protocols.openai_responses_api.tools import (
    INPUT,
    CalledTool,
    flat_name,
    offered_tools,
)
from pellucid.server.protocols.parts import part_text
from pellucid.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Conversation:
    """A conversation in the form that all protocols share.

    Attributes:
        tools: what the client calls its tools, by the names that the model uses.
    """

    prompt: ChatPrompt
    tools: Mapping[str, CalledTool]


def conversation_of(
    body: ConversationFields,
    tokenizer: Tokenizer,
    warnings: list[str],
    find: Callable[[object], dict[str, Any] | None] = lambda item_id: None,
) -> Conversation:
    """The conversation of a call.

    Args:
        find: a recent item of the caller, by its id.

    Raises:
        ApiError: an item is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    builder = ConversationBuilder(tokenizer, warnings)
    if body.instructions:
        builder.add("system", body.instructions)
    items: list[Any] = (
        [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    )
    tools = list(body.tools or ())
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "item_reference":
            item = _referenced(item, f"input[{index}]", find)
        if isinstance(item, dict) and item.get("type") == "additional_tools":  # of Codex CLI
            tools += _list(item.get("tools"), f"input[{index}].tools")
        else:
            _add_item(builder, item, f"input[{index}]", warnings)
    builder.set_effort(body.effort, "reasoning.effort")
    offered = list(offered_tools(tools, warnings))
    builder.offer_tools([tool.function for tool in offered])
    called = {str(tool.function["function"]["name"]): tool.called for tool in offered}
    return Conversation(builder.prompt(), called)


# What is read of each kind of item
_ITEM_KEYS = {
    "message": {"role", "content"},
    "reasoning": {"content", "encrypted_content", "summary"},
    "function_call": {"call_id", "name", "namespace", "arguments"},
    "custom_tool_call": {"call_id", "name", "namespace", "input"},
    "function_call_output": {"call_id", "output"},
    "custom_tool_call_output": {"call_id", "output"},
}


def _add_item(builder: ConversationBuilder, item: Any, name: str, warnings: list[str]) -> None:
    """Adds an item to the conversation: calls and reasoning belong to the assistant's message."""
    last = builder.messages[-1] if builder.messages else {}
    if not isinstance(item, dict):
        raise refused(f"{name}: must be an object", name)
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise refused(f"{name}.type={shown(kind)}: must be text", f"{name}.type")
    if kind in _ITEM_KEYS:
        warn_of_unknown_keys(item, _ITEM_KEYS[kind] | {"id", "status", "type"}, "input", warnings)
    if kind == "message":
        role, text = item.get("role"), _text(item.get("content"), name, warnings)
        if role == last.get("role") == "assistant" and last.get("content") is None:
            last["content"] = text  # its reasoning came first
        else:
            builder.add(role, text)
    elif kind == "reasoning":
        texts = _texts(item.get("content"), f"{name}.content")
        texts = texts or _texts(item.get("summary"), f"{name}.summary")
        if texts:
            builder.add("assistant", None, reasoning_content="\n".join(texts))
    elif kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else {INPUT: item.get("input")}
        called = flat_name(item.get("name"), item.get("namespace"))
        if last.get("role") != "assistant":
            builder.add("assistant", None)
        calls = builder.messages[-1].setdefault("tool_calls", [])
        calls.append(function_call(item.get("call_id"), called, arguments))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        builder.add_result(item.get("call_id"), _text(item.get("output"), name, warnings))
    else:
        warnings.append(f"{name}: has no effect: items of the type {kind[:64]!r} are not served")


def _referenced(
    item: Mapping[str, Any], name: str, find: Callable[[object], dict[str, Any] | None]
) -> dict[str, Any]:
    found = find(item.get("id"))
    if found is None:
        raise refused(
            f"{name}.id={shown(item.get('id'))}: is not kept any more: send the item itself", name
        )
    return found


def _list(value: Any, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise refused(f"{name}={shown(value)}: must be a list", name)
    return value


def _texts(parts: Any, name: str) -> list[str]:
    """The texts of a reasoning item's parts."""
    texts = []
    for index, part in enumerate(_list(parts, name)):
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise refused(f"{name}[{index}].text={shown(text)}: must be text", name)
        texts.append(text)
    return texts


def _text(content: Any, name: str, warnings: list[str]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(f"{name}: content must be text or a list of parts", name)
    parts = enumerate(content)
    return "\n".join(part_text(part, f"{name}.content[{at}]", warnings) for at, part in parts)
