"""Turns Ollama's messages into the form that all protocols share."""

from typing import Any

from pellucid.server.errors import refused


def own_message(message: Any, index: int) -> Any:
    """Ollama's message in the form that all protocols share."""
    if not isinstance(message, dict):
        return message  # refused where all messages are checked
    if message.get("images"):
        raise refused(f"messages[{index}].images: only text is served", "messages")
    names = {"thinking": "reasoning_content", "tool_name": "name"}
    return {names.get(key, key): value for key, value in message.items() if key != "images"}


def is_unfinished(message: Any) -> bool:
    """Whether it is an assistant's text, which the answer is to continue."""
    return (
        isinstance(message, dict)
        and message.get("role") == "assistant"
        and bool(message.get("content"))
        and not message.get("tool_calls")
    )
