"""Writes one choice of a chat completion, whole or in parts."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.server.generation import Generation
from pellucid.server.protocols.answers import Block, BlockEvent, BlockKind, Change
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.logprobs import token_logprobs
from pellucid.server.protocols.openai_chat_api.fields import ChatBody, PlaceOfReasoning
from pellucid.server.protocols.openai_chat_api.reply_objects import (
    NOTHING,
    CallFunction,
    ChatChoice,
    ChatDelta,
    ChatMessage,
    ChoiceLogprobs,
    ChunkChoice,
    ToolCall,
)
from pellucid.server.protocols.openai_shared.endings import openai_finish_reason, shown_stop_reason
from pellucid.server.protocols.openai_shared.writer import ChoiceWriter
from pellucid.server.streaming import TextChunks, TextTemplate


class ChatChoiceWriter(ChoiceWriter[ChatBody]):
    """Writes one choice, whole or in parts."""

    def __init__(
        self, number: int, ask: Ask[ChatBody], output: RequestOutput, generation: Generation
    ) -> None:
        super().__init__(number, ask, output)
        body = ask.body
        self._blocks = ask.form.blocks(generation)
        self._has_equal_frames = body.has_equal_frames and body.num_top_logprobs is None
        self._growing = {BlockKind.TEXT, BlockKind.REASONING}  # kinds whose text the client gets
        if body.place_of_reasoning is PlaceOfReasoning.NOWHERE:
            self._growing.remove(BlockKind.REASONING)
        self._template_block: Block | None = None  # whose growth the template's frames bring
        self._template = TextTemplate(b"")

    @property
    def num_tokens(self) -> int:
        return self._blocks.num_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        return self._blocks.num_reasoning_tokens

    def whole(self, delta: CompletionDelta) -> ChatChoice:
        self._blocks.read(delta)
        choice = ChatChoice(
            self._number,
            self._message(),
            self._logprobs(delta),
            self._finish_reason(delta),
            shown_stop_reason(delta.finish_reason, delta.stop_reason),
        )
        self._add_tokens(choice, delta.token_ids)
        return choice

    def part(
        self, delta: CompletionDelta, frame: Callable[[msgspec.Struct], bytes]
    ) -> bytes | None:
        events = self._shown(self._blocks.read(delta))
        if len(events) == 1 and delta.finish_reason is None:
            (event,) = events
            if event.block is self._template_block and event.change is Change.GREW:
                return self._template.of(event.text)
        part = self._full_part(delta, events)
        block = self._blocks.open_block
        if self._has_equal_frames and block is not None and block is not self._template_block:
            if block.kind in self._growing:
                self._template = TextTemplate(frame(self._grown(block.kind, TextTemplate.PLACE)))
                self._template_block = block
        return None if part is None else frame(part)

    def text_chunks(self, frame: Callable[[msgspec.Struct], bytes]) -> TextChunks | None:
        if not self._has_equal_frames:
            return None
        return self._blocks.text_chunks(
            lambda block: TextChunks(frame(self._grown(block.kind, TextTemplate.PLACE)))
        )

    def _full_part(
        self, delta: CompletionDelta, events: Sequence[BlockEvent]
    ) -> ChunkChoice | None:
        added = self._added(events)
        choice = ChunkChoice(self._number, added)
        if delta.logprobs is not None:
            choice.logprobs = self._logprobs(delta)
        if delta.finish_reason is not None:
            choice.finish_reason = self._finish_reason(delta)
            choice.stop_reason = shown_stop_reason(delta.finish_reason, delta.stop_reason)
        elif added == NOTHING and delta.logprobs is None and not self._body.return_token_ids:
            return None  # half a character, or what may become a stop string or a tool call
        if self._is_first:
            added.role = "assistant"
            if added.content is UNSET:
                added.content = ""
        if self._is_first or self._body.return_token_ids:
            self._add_tokens(choice, delta.token_ids)
        self._is_first = False
        return choice

    def _shown(self, events: list[BlockEvent]) -> list[BlockEvent]:
        """Without those of reasoning, if the client does not want it."""
        if BlockKind.REASONING in self._growing:
            return events
        return [event for event in events if event.block.kind is not BlockKind.REASONING]

    def _message(self) -> ChatMessage:
        text = self._blocks.text_of(BlockKind.TEXT)
        message = ChatMessage(None if self._blocks.has_calls and not text else text)
        reasoning = self._blocks.text_of(BlockKind.REASONING)
        if reasoning and BlockKind.REASONING in self._growing:
            message.reasoning_content = message.reasoning = reasoning
        if self._blocks.has_calls:
            message.tool_calls = [
                ToolCall(
                    CallFunction(block.name or "", block.text),
                    id=block.call_id or UNSET,
                    type="function",
                )
                for block in self._blocks.blocks
                if block.kind is BlockKind.CALL
            ]
        return message

    def _added(self, events: Sequence[BlockEvent]) -> ChatDelta:
        """The delta of a message for changes of blocks."""
        added = ChatDelta()
        calls: dict[int, ToolCall] = {}  # by index: clients take two entries for two calls
        for event in events:
            block = event.block
            if block.kind is BlockKind.CALL and event.change is not Change.CLOSED:
                index = self._blocks.call_index(block)
                call = calls.setdefault(index, ToolCall(CallFunction(UNSET, ""), index=index))
                call.function.arguments += event.text
                if event.change is Change.OPENED:
                    call.id, call.type = block.call_id or UNSET, "function"
                    call.function.name = block.name or ""
            elif event.change is Change.GREW and block.kind is BlockKind.TEXT:
                added.content = (added.content or "") + event.text
            elif event.change is Change.GREW:
                added.reasoning = (added.reasoning or "") + event.text
                added.reasoning_content = added.reasoning
        if calls:
            added.tool_calls = list(calls.values())
        return added

    def _finish_reason(self, delta: CompletionDelta) -> str | None:
        is_named = isinstance(self._body.tool_choice, dict)  # OpenAI's answer to that is "stop"
        if delta.finish_reason == "stop" and self._blocks.has_calls and not is_named:
            return "tool_calls"
        return openai_finish_reason(delta.finish_reason)

    def _logprobs(self, delta: CompletionDelta) -> ChoiceLogprobs | None:
        if delta.logprobs is None:
            return None
        return ChoiceLogprobs(
            token_logprobs(
                self._tokenizer,
                delta.token_ids,
                delta.logprobs,
                self._body.num_top_logprobs or 0,
                self._body.return_tokens_as_token_ids,
            )
        )

    def _grown(self, kind: BlockKind, text: str) -> ChunkChoice:
        """What added text of content or reasoning adds to the choice."""
        if kind is BlockKind.TEXT:
            return ChunkChoice(self._number, ChatDelta(content=text))
        return ChunkChoice(self._number, ChatDelta(reasoning_content=text, reasoning=text))
