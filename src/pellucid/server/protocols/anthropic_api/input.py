"""Turns Anthropic's messages and tools into a conversation."""

import logging
from collections.abc import Sequence
from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.errors import refused
from pellucid.server.fields import warn_of_unknown_keys
from pellucid.server.protocols.anthropic_api.fields import ConversationFields
from pellucid.server.protocols.conversation import ConversationBuilder, function_call
from pellucid.server.protocols.parts import part_text
from pellucid.text.tokenizer import Tokenizer

_log = logging.getLogger("pellucid.server")

# Claude Code puts a line of this name before its system prompt, with a number that changes in every request:
# no prompt would ever be found in the cache again.
BILLING_BLOCK = "x-anthropic-billing-header"


def conversation_of(
    body: ConversationFields, tokenizer: Tokenizer, warnings: list[str], keeps_billing: bool = False
) -> ChatPrompt:
    """The conversation of a call in the form that all protocols share.

    Messages keep their order, system messages within the conversation included. Moved to the front, they would
    change the prompt from its beginning, and the prefix cache would find nothing of it.

    Raises:
        ApiError: a block is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    builder = ConversationBuilder(tokenizer, warnings)
    for block in body.system if isinstance(body.system, list) else ():
        if isinstance(block, dict):
            warn_of_unknown_keys(block, _BLOCK_KEYS["text"] | {"type"}, "system", warnings)
    if body.system is not None and (system := system_text(body.system, keeps_billing, warnings)):
        builder.add("system", system)
    for index, message in enumerate(body.messages):
        _add_message(builder, message, f"messages[{index}]", warnings)
    builder.offer_tools(_functions(body.tools or (), warnings))
    builder.set_effort(body.effort, "output_config.effort")
    builder.set_switch(body.wants_thinking, "thinking")
    return builder.prompt(is_continued=builder.is_unfinished)


def system_text(system: str | list[Any], keeps_billing: bool, warnings: list[str]) -> str:
    blocks = (
        [system]
        if isinstance(system, str)
        else [part_text(block, "system", warnings) for block in system]
    )
    if keeps_billing:
        return "\n\n".join(blocks)
    kept = [text for text in blocks if not text.lstrip().startswith(BILLING_BLOCK)]
    if len(kept) < len(blocks):
        _log.debug("left a block out of a system prompt that changes with every request")
    return "\n\n".join(kept)


def _add_message(
    builder: ConversationBuilder, message: Any, name: str, warnings: list[str]
) -> None:
    """Adds one of Anthropic's messages: results of tools become messages of their own, before its text."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise refused(f"{name}.role: must be 'user', 'assistant' or 'system'", name)
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        builder.add(role, content)
        return
    if not isinstance(content, list):
        raise refused(f"{name}.content: must be text or a list of blocks", f"{name}.content")
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    num_before = len(builder.messages)
    for index, block in enumerate(content):
        at = f"{name}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _BLOCK_KEYS:
            warn_of_unknown_keys(block, _BLOCK_KEYS[kind] | {"type"}, "messages", warnings)
        if kind == "thinking":
            reasoning.append(str(block.get("thinking", "")))
        elif kind == "redacted_thinking":
            warnings.append(f"{at}: has no effect: nobody here can read it")
        elif kind == "tool_use":
            called, arguments = block.get("name"), block.get("input") or {}
            calls.append(function_call(block.get("id"), called, arguments))
        elif kind == "tool_result":
            builder.add_result(block.get("tool_use_id"), _result_text(block, at, warnings))
        else:
            texts.append(part_text(block, at, warnings))
    others: dict[str, Any] = {"reasoning_content": "\n".join(reasoning)} if reasoning else {}
    if calls:
        others["tool_calls"] = calls
    if texts or others:
        builder.add(role, "\n".join(texts) if texts else None, **others)
    elif len(builder.messages) == num_before:
        builder.add(role, "")


def _result_text(block: dict[str, Any], name: str, warnings: list[str]) -> str:
    content = block.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        if not isinstance(content, list):
            raise refused(f"{name}.content: must be text or a list of blocks", name)
        content = "\n".join(part_text(part, f"{name}.content", warnings) for part in content)
    return f"Error: {content}" if block.get("is_error") is True else content


_TOOL_KEYS = {"type", "name", "description", "input_schema", "strict"}
# What is read of each kind of block; thinking's signature proves to the vendor that it is the vendor's.
_BLOCK_KEYS = {
    "text": {"text"},
    "thinking": {"thinking", "signature"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id", "content", "is_error"},
}


def _functions(tools: Sequence[Any], warnings: list[str]) -> list[dict[str, Any]]:
    """The functions among the tools of a call."""
    functions = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise refused(f"tools[{index}]: must be an object", "tools")
        if tool.get("type", "custom") != "custom":
            warnings.append(
                f"tools[{index}]: has no effect: {shown(tool['type'])} is the vendor's own"
            )
            continue
        warn_of_unknown_keys(tool, _TOOL_KEYS, "tools", warnings)
        function = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
            "strict": tool.get("strict") or None,
        }
        given = {key: value for key, value in function.items() if value is not None}
        functions.append({"type": "function", "function": given})
    return functions
