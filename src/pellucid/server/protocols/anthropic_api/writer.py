"""Writes Anthropic's message of an answer, whole or as server-sent events."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.server.errors import ApiError, ErrorShape
from pellucid.server.generation import Generation, whole_delta
from pellucid.server.protocols.answers import Block, BlockEvent, BlockKind, Change
from pellucid.server.protocols.anthropic_api.fields import MessagesBody
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.cache_comparison import CacheOutcome, compare_with
from pellucid.server.request_records import RequestRecords
from pellucid.server.streaming import StreamWriter, TextChunks, TextTemplate, sse_event

# By finish and stop reason. A client may send a cancelled answer back, and the model continues it: so Anthropic says
# "pause_turn" of an answer that is not finished.
STOP_REASONS: dict[tuple[str | None, int | str | None], str] = {
    ("length", "context_length"): "model_context_window_exceeded",
    ("length", None): "max_tokens",
    ("abort", None): "pause_turn",
    ("stop", None): "end_turn",
}
# Nobody here checks signatures, but clients drop thinking that has none, and with it the prefix that is in the cache.
SIGNATURE = "pellucid"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageWriter(StreamWriter):
    """Writes one message, whole or as events."""

    def __init__(
        self,
        generation: Generation,
        ask: Ask[MessagesBody],
        records: RequestRecords,
    ) -> None:
        self._generation = generation
        self._model = ask.name
        self._asked = ask.body.diagnostics
        self._records = records
        self._blocks = ask.form.blocks(generation)
        self._templates: dict[int, TextTemplate] = {}  # by block: of the events that it grows by
        self._has_begun = False

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (completion,) = outputs[0].outputs
        delta = whole_delta(outputs[0].request_id, completion)
        self._blocks.read(delta)
        message = self._message()
        message["content"] = [_content_block(block) for block in self._blocks.blocks]
        message |= self._ending(completion.finish_reason, completion.stop_reason)
        return msgspec.json.encode(message)

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        events = []
        if not self._has_begun:  # now it is known what was found in the cache
            self._has_begun = True
            events.append(_event("message_start", message=self._message()))
        events += map(self._block_event, self._blocks.read(delta))
        if delta.finish_reason is not None:
            events += map(self._block_event, self._blocks.close())
            ending = self._ending(delta.finish_reason, delta.stop_reason)
            events.append(_event("message_delta", delta=ending, usage=self._usage()))
            events.append(_event("message_stop"))
        return b"".join(events)

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        return self._blocks.text_chunks(lambda block: TextChunks(_growth_frame(block)))

    def failure(self, error: ApiError, request_id: str) -> bytes:
        return sse_event(b"error", ErrorShape.ANTHROPIC.body(error, request_id))

    def keepalive(self) -> bytes:
        return PING

    def _block_event(self, event: BlockEvent) -> bytes:
        block = event.block
        if event.change is Change.OPENED:
            return _event("content_block_start", index=block.index, content_block=_opened(block))
        if event.change is Change.CLOSED:
            stop = _event("content_block_stop", index=block.index)
            if block.kind is not BlockKind.REASONING:
                return stop
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            return _event("content_block_delta", index=block.index, delta=delta) + stop
        return self._growth(block, event.text)

    def _growth(self, block: Block, text: str) -> bytes:
        template = self._templates.get(block.index)
        if template is None:
            template = self._templates[block.index] = TextTemplate(_growth_frame(block))
        return template.of(text)

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._generation.id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
            **self._diagnostics(),
        }

    def _diagnostics(self) -> dict[str, Any]:
        """Of the cache, if the client asked for them."""
        if self._asked is None or self._asked.previous_message_id is None:
            return {}
        found = compare_with(self._asked.previous_message_id, self._generation, self._records)
        if found.outcome is CacheOutcome.REUSED:
            return {"diagnostics": None}
        reason: dict[str, Any] = {"type": "unavailable"}
        if found.outcome is CacheOutcome.NOT_FOUND:
            reason = {"type": "previous_message_not_found"}
        elif found.outcome is CacheOutcome.DIFFERS:
            kind = f"{found.changed or 'messages'}_changed"
            reason = {"type": kind, "cache_missed_input_tokens": found.missed_tokens}
        return {"diagnostics": {"cache_miss_reason": reason}}

    def _usage(self) -> dict[str, int]:
        """Anthropic counts what was found in the cache apart."""
        (output,) = self._generation.outputs
        found = output.num_cached_tokens
        return {
            "input_tokens": len(output.prompt_token_ids) - found,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": found,
            "output_tokens": self._blocks.num_tokens,
        }

    def _ending(self, finish_reason: str | None, stop_reason: int | str | None) -> dict[str, Any]:
        if finish_reason == "stop" and stop_reason in self._generation.request.params.stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        if self._blocks.has_calls and finish_reason == "stop":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        reason = STOP_REASONS.get((finish_reason, stop_reason)) or STOP_REASONS[finish_reason, None]
        return {"stop_reason": reason, "stop_sequence": None}


def _growth_frame(block: Block) -> bytes:
    """The event of a block that grows by the text `TextTemplate.PLACE`."""
    kind, field = _DELTA_FIELDS[block.kind]
    delta = {"type": kind, field: TextTemplate.PLACE}
    return _event("content_block_delta", index=block.index, delta=delta)


def _opened(block: Block) -> dict[str, Any]:
    """A block without its text and signature."""
    opened = _content_block(Block(block.index, block.kind, block.call_id, block.name))
    return {**opened, "signature": ""} if block.kind is BlockKind.REASONING else opened


def _content_block(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.TEXT:
        return {"type": "text", "text": block.text}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": SIGNATURE}
    return {
        "type": "tool_use",
        "id": block.call_id,
        "name": block.name,
        "input": block.arguments,
    }


_DELTA_FIELDS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


def _event(kind: str, **fields: Any) -> bytes:
    return sse_event(kind.encode(), msgspec.json.encode({"type": kind, **fields}))
