"""The server-sent events of a streamed response."""

import secrets
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from pellucid.outputs import CompletionDelta
from pellucid.server.errors import ApiError
from pellucid.server.protocols.answers import Block, BlockEvent, BlockKind, Change
from pellucid.server.protocols.logprobs import TokenLogprob
from pellucid.server.protocols.openai_responses_api.item_events import EventNames, ItemEvents
from pellucid.server.protocols.openai_responses_api.response_object import ResponseObject
from pellucid.server.streaming import StreamWriter, TextChunks, TextTemplate, encode_text, sse_event


class EventWriter(StreamWriter):
    """Writes one response as server-sent events."""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._templates: dict[int, TextTemplate] = {}  # by block: of the events that it grows by
        self._numbers = count()  # of the events
        # Repeats most of the request, which may be long
        self._in_progress = msgspec.json.encode(
            {"response": response.without_output("in_progress")}
        )

    def first(self) -> bytes:
        created = self._numbered_event(b"response.created", self._in_progress)
        return created + self.keepalive()

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        changes = self._response.read(delta)
        if delta.finish_reason is not None:
            changes += ((change, ()) for change in self._response.blocks.close())
        frames = [frame for change in changes for frame in self._block_frames(*change)]
        if delta.finish_reason is not None:
            response = self._response.ended(delta.finish_reason)
            frames.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(frames)

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        if self._response.has_logprobs:
            return None
        return self._response.blocks.text_chunks(self._new_text_chunks)

    def _new_text_chunks(self, block: Block) -> TextChunks:
        fields = msgspec.json.encode(self._growth(block, TextTemplate.PLACE, ()))
        frame = _numbered_event(self._growth_event(block), _NumberedChunks.NUMBER, fields)
        return _NumberedChunks(frame, self._numbers, block)

    def keepalive(self) -> bytes:
        """Clients' idle timers are reset by events, not by comments."""
        return self._numbered_event(b"response.in_progress", self._in_progress)

    def failure(self, error: ApiError, request_id: str) -> bytes:
        response = self._response.without_output("failed")
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=response)

    def _block_frames(self, event: BlockEvent, logprobs: Sequence[TokenLogprob]) -> list[bytes]:
        block = event.block
        if event.change is Change.GREW:
            if self._response.events_of(block) is ItemEvents.INPUT:
                return []  # its text is known when its JSON ends
            return [self._growth_frame(block, event.text, logprobs)]
        if event.change is Change.OPENED:
            return self._opening_frames(block)
        return self._closing_frames(block)

    def _opening_frames(self, block: Block) -> list[bytes]:
        item = self._response.item(block, "in_progress")
        frames = [self._event("response.output_item.added", output_index=block.index, item=item)]
        if (part := self._names(block).part) is not None:
            content = self._response.content(block, "")
            frames.append(self._event(f"response.{part}.added", **self._place(block), part=content))
        return frames

    def _closing_frames(self, block: Block) -> list[bytes]:
        place, names = self._place(block), self._names(block)
        name = f"response.{names.text}"
        item = self._response.item(block, "completed")
        if self._response.events_of(block) is ItemEvents.INPUT:
            done = [
                self._event(f"{name}.delta", **place, delta=item["input"]),
                self._event(f"{name}.done", **place, input=item["input"]),
            ]
        elif names.part is None:
            done = [self._event(f"{name}.done", **place, name=item["name"], arguments=block.text)]
        else:
            content = self._response.content(block, block.text)
            logprobs = {"logprobs": content["logprobs"]} if "logprobs" in content else {}
            done = [
                self._event(f"{name}.done", **place, **logprobs, text=block.text),
                self._event(f"response.{names.part}.done", **place, part=content),
            ]
        ended = self._event("response.output_item.done", output_index=block.index, item=item)
        return [*done, ended]

    def _growth_frame(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        kind = self._growth_event(block)
        if logprobs:
            fields = self._growth(block, text, logprobs)
            return self._numbered_event(kind, msgspec.json.encode(fields))
        template = self._templates.get(block.index)
        if template is None:
            fields = self._growth(block, TextTemplate.PLACE, ())
            template = TextTemplate(msgspec.json.encode(fields))
            self._templates[block.index] = template
        return self._numbered_event(kind, template.of(text))

    def _growth(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        fields = self._place(block)
        if block.kind is BlockKind.TEXT:
            fields["logprobs"] = logprobs
        return {**fields, "delta": text}

    def _place(self, block: Block) -> dict[str, Any]:
        place = {"item_id": self._response.item_id(block), "output_index": block.index}
        index = self._names(block).index
        return place if index is None else {**place, index: 0}

    def _names(self, block: Block) -> EventNames:
        return self._response.events_of(block).value

    def _growth_event(self, block: Block) -> bytes:
        return f"response.{self._names(block).text}.delta".encode()

    def _event(self, kind: str, **fields: Any) -> bytes:
        return self._numbered_event(kind.encode(), msgspec.json.encode(fields))

    def _numbered_event(self, kind: bytes, fields: bytes) -> bytes:
        """An event: the two fields that every event has, then those of a JSON object."""
        return _numbered_event(kind, b"%d" % next(self._numbers), fields)


def _numbered_event(kind: bytes, number: bytes, fields: bytes) -> bytes:
    return sse_event(kind, b'{"type":"%b","sequence_number":%b,%b' % (kind, number, fields[1:]))


class _NumberedChunks(TextChunks):
    """The chunks of the events by which a block of text grows.

    Args:
        frame: an event, with the strings `TextTemplate.PLACE` for the text and `NUMBER` for its number.
        numbers: of the events.
        block: gets the text.
    """

    __slots__ = ("_block_parts", "_numbers")
    NUMBER = secrets.token_hex().encode()  # no string of a client

    def __init__(self, frame: bytes, numbers: Iterator[int], block: Block) -> None:
        super().__init__(frame, self.NUMBER)
        self._numbers = numbers
        self._block_parts = block.parts

    def _chunk(self, text: str) -> bytes:
        self._block_parts.append(text)
        number, encoded = b"%d" % next(self._numbers), encode_text(text)
        size = self._size + len(number) + len(encoded)
        return self._format % (size, number, encoded)
