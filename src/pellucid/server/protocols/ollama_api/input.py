"""Turns Ollama's messages into the form that all protocols share."""

from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.server.errors import refused
from pellucid.server.protocols.parts import placeholder


def shared_message(message: Any, index: int, warnings: list[str]) -> Any:
    """Ollama's message in the form that all protocols share."""
    if not isinstance(message, dict):
        return message  # refused where all messages are checked
    names = {"thinking": "reasoning_content", "tool_name": "name"}
    shared = {names.get(key, key): value for key, value in message.items() if key != "images"}
    if message.get("images"):
        text, field = message.get("content") or "", f"messages[{index}].images"
        shared["content"] = with_images(text, message["images"], field, warnings)
    return shared


def with_images(text: Any, images: Any, field: str, warnings: list[str]) -> Any:
    """A text, with a placeholder for each image.

    Raises:
        ApiError: the images are not a list.
    """
    if not isinstance(images, list):
        raise refused(f"{field}={shown(images)}: must be a list", "images")
    if not isinstance(text, str):
        return text  # refused where all messages are checked
    return "\n".join([*([text] if text else []), *(placeholder("image", warnings) for _ in images)])


def is_unfinished(message: Any) -> bool:
    """Whether it is an assistant's text, which the answer is to continue."""
    return (
        isinstance(message, dict)
        and message.get("role") == "assistant"
        and bool(message.get("content"))
        and not message.get("tool_calls")
    )
