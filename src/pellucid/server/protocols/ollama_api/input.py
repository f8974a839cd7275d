"""Turns Ollama's prompts and messages into a conversation."""

from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.errors import refused
from pellucid.server.protocols.conversation import ConversationBuilder
from pellucid.server.protocols.ollama_api.fields import ChatBody, CommonFields, GenerateBody
from pellucid.server.protocols.parts import placeholder
from pellucid.text.tokenizer import Tokenizer


def conversation_of(body: ChatBody, tokenizer: Tokenizer, warnings: list[str]) -> ChatPrompt:
    """The conversation of a call.

    Raises:
        ApiError: a part of it is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    builder = ConversationBuilder(tokenizer, warnings)
    messages = enumerate(body.messages or ())
    builder.add_sent([shared_message(message, index, warnings) for index, message in messages])
    builder.require_tools(body.tools)
    _set_thinking(builder, body, tokenizer)
    return builder.prompt(is_continued=builder.is_unfinished)


def prompt_of(body: GenerateBody, tokenizer: Tokenizer, warnings: list[str]) -> str | ChatPrompt:
    """The prompt of a call: a conversation, unless it is raw or the model has no chat template.

    Raises:
        ApiError: a field has no meaning for such a prompt.
    """
    text: str = with_images(body.prompt, body.images or [], "images", warnings)
    if body.raw or not tokenizer.has_chat_template:
        if body.system:
            raise refused("system: needs a chat template, and no raw", "system")
        return text
    builder = ConversationBuilder(tokenizer, warnings)
    if body.system:
        builder.add("system", body.system)
    builder.add("user", text)
    _set_thinking(builder, body, tokenizer)
    return builder.prompt()


def _set_thinking(builder: ConversationBuilder, body: CommonFields, tokenizer: Tokenizer) -> None:
    if isinstance(body.think, str) and tokenizer.chat_template_mentions("reasoning_effort"):
        builder.set_effort(body.think, "think")
    else:
        builder.set_switch(None if body.think is None else bool(body.think), "think")


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
