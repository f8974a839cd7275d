"""The objects in replies of chat completions."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pellucid.server.protocols.logprobs import TokenLogprob


class ChoiceLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CallFunction(msgspec.Struct):
    name: str | UnsetType
    arguments: str


class ToolCall(msgspec.Struct):
    """A call, or in a stream what is added to one: its first part has everything but the arguments."""

    function: CallFunction
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """Clients of vLLM and Ollama read `reasoning`, those of llama.cpp `reasoning_content`."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


class ChatDelta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


NOTHING = ChatDelta()


class ChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET
