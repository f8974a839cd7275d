"""Streams of the protocols: frames, errors within a stream, and progress before the first token."""

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from pellucid.async_engine import AsyncTokenStream
from pellucid.outputs import CompletionDelta
from pellucid.server.endpoint import SSE_KEEPALIVE, ReplySender
from pellucid.server.errors import ApiError, error_of
from pellucid.server.generation import Generation, check_ended_well
from pellucid.server.http_protocol import BodyWriter, chunk_format

_log = logging.getLogger("pellucid.server")

PROGRESS_SECONDS = 0.25


def sse(data: bytes) -> bytes:
    """A server-sent event without a name (WHATWG HTML, section 9.2). JSON has no bare line ends."""
    return b"data: " + data + b"\n\n"


def sse_event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


encode_text = msgspec.json.Encoder().encode


class TextTemplate:
    """A frame, or a part of one, that differs from a template only in one text, as the frames of most tokens do.

    Args:
        template: JSON, or a frame of JSON, with the string `PLACE` where the text goes.
    """

    __slots__ = ("_parts",)
    PLACE = secrets.token_hex()  # no string of a client
    ENCODED_PLACE = encode_text(PLACE)

    def __init__(self, template: bytes) -> None:
        self._parts = template.split(self.ENCODED_PLACE)

    def of(self, text: str) -> bytes:
        """The template with a text."""
        return encode_text(text).join(self._parts)


class TextChunks:
    """Makes the chunks of a reply's body for the deltas that add text to one completion and nothing else.

    Between two steps a stream's objects leave the processor's caches, so a token must need few of them: one
    format makes the whole chunk.

    Args:
        frame: with the string `TextTemplate.PLACE` where the text goes.
        first_place: what stands in the frame for something before the text that differs too, in subclasses.

    Attributes:
        num_tokens: of the deltas whose chunks were made.
    """

    __slots__ = ("_format", "_size", "num_tokens")

    def __init__(self, frame: bytes, first_place: bytes | None = None) -> None:
        parts = [frame] if first_place is None else frame.split(first_place)
        parts[-1:] = parts[-1].split(TextTemplate.ENCODED_PLACE)
        self._size = sum(map(len, parts))
        self._format = chunk_format(*parts)
        self.num_tokens = 0

    def of(self, delta: CompletionDelta) -> bytes:
        """The chunk of a delta; empty: the delta has no text."""
        self.num_tokens += len(delta.token_ids)
        return self._chunk(delta.text) if delta.text else b""

    def _chunk(self, text: str) -> bytes:
        encoded = encode_text(text)
        return self._format % (self._size + len(encoded), encoded)


class StreamWriter(ABC):
    """Writes the frames of one streamed reply in its protocol. `CompletionsReply` calls it."""

    media_type = "text/event-stream"

    def first(self) -> bytes:
        """The frames before the completions."""
        return b""

    @abstractmethod
    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        """The frames of a delta of one completion; empty: the delta has nothing that the client would see."""

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        """Makes the chunks of the next deltas of a completion, as long as they add text alone. None: `added` must write
        the next delta."""
        return None

    def last(self) -> bytes:
        """The frames after all completions."""
        return b""

    @abstractmethod
    def failure(self, error: ApiError, request_id: str) -> bytes:
        """The last frames of a stream that fails after its status was sent."""

    def keepalive(self) -> bytes:
        """A frame that clients ignore, sent after some time without other frames."""
        return SSE_KEEPALIVE


@dataclass(eq=False)
class CompletionsReply:
    """The reply that streams the completions of a request.

    The event loop's callback that brings the deltas of a step also writes their frames. If the client is slower than
    the engine, the engine's stream merges the deltas until the client can take them.

    Args:
        generation: the request.
        writer: of the protocol.
        progress: makes a frame of the progress before the first token; None: the client did not ask.
    """

    _generation: Generation
    _writer: StreamWriter
    _progress: Callable[["Progress"], bytes] | None = None

    def __post_init__(self) -> None:
        self.media_type = self._writer.media_type
        self.keepalive = self._writer.keepalive

    async def send_to(self, sender: ReplySender) -> bytes:
        generation, writer = self._generation, self._writer
        try:
            if first := writer.first():
                sender.write(first)
            if self._progress is not None:
                await self._send_progress(sender, self._progress)
            await _DeltaWriter(generation.streams, writer, sender.body_writer).ended
            return writer.last()
        except Exception as error:
            refusal = error_of(error)
            if refusal.code == "internal_error":
                _log.exception("%s: failed within a stream", generation.id)
            return writer.failure(refusal, generation.id)

    async def _send_progress(
        self, sender: ReplySender, progress: Callable[["Progress"], bytes]
    ) -> None:
        """Sends the progress of the prompts at their start, some times a second, and at the first token."""
        arrived = asyncio.Event()

        def on_delta(delta: CompletionDelta) -> bool:
            arrived.set()
            return False

        for stream in self._generation.streams:
            stream.call_back(on_delta, arrived.set)
        while True:
            sender.write(progress(progress_of(self._generation)))
            if any(stream.is_readable for stream in self._generation.streams):
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(arrived.wait(), PROGRESS_SECONDS)


class _DeltaWriter:
    """Writes the frames of a request's deltas, first of those that are unread.

    Args:
        streams: of the request's prompts.
        writer: of the protocol.
        body: of the reply.

    Attributes:
        ended: is done when all frames are written; has the error of a completion or of the engine that failed.
    """

    def __init__(
        self, streams: Sequence[AsyncTokenStream], writer: StreamWriter, body: BodyWriter
    ) -> None:
        self._prompts = [
            (stream, _PromptDeltaWriter(prompt_index, writer, body, self._fail))
            for prompt_index, stream in enumerate(streams)
        ]
        self._body = body
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for stream, deltas in self._prompts:
            stream.call_back(deltas.on_delta, self._write_unread)
        body.on_writable = self._write_unread
        self._write_unread()

    def _write_unread(self) -> None:
        if self._body.is_paused or self.ended.done():
            return
        try:
            for stream, deltas in self._prompts:
                for delta in stream.take():
                    deltas.write(delta)
            if all(stream.has_ended for stream, _ in self._prompts):
                self.ended.set_result(None)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


@dataclass(eq=False, slots=True)
class _PromptDeltaWriter:
    """Writes the deltas of one prompt's completions.

    Args:
        fail: told of an error.
    """

    _prompt_index: int
    _writer: StreamWriter
    _body: BodyWriter
    _fail: Callable[[Exception], None]
    _index: int = 0  # of the completion whose delta came last
    _text_chunks: TextChunks | None = None  # of this completion

    def on_delta(self, delta: CompletionDelta) -> bool:
        """Writes a delta, unless the client is slow."""
        if self._body.is_paused:
            return False
        try:
            self.write(delta)
        except Exception as error:
            self._fail(error)
        return True

    def write(self, delta: CompletionDelta) -> None:
        if delta.index != self._index:
            self._index = delta.index
            self._text_chunks = self._writer.text_chunks(self._prompt_index, delta.index)
        if delta.finish_reason is not None:
            check_ended_well(delta.finish_reason, delta.stop_reason)
        elif self._text_chunks is not None:
            if chunk := self._text_chunks.of(delta):
                self._body.write_chunk(chunk)
            return
        if frame := self._writer.added(self._prompt_index, delta):
            self._body.write(frame)
        self._text_chunks = self._writer.text_chunks(self._prompt_index, delta.index)


@dataclass(frozen=True)
class Progress:
    """Progress of the prompts of a request.

    Attributes:
        total: tokens of the prompts.
        cache: of these, found in the prefix cache.
        processed: of these, computed or found.
        time_ms: since the request arrived.
        queue_position: requests that are admitted before it; None: it runs.
    """

    total: int
    cache: int
    processed: int
    time_ms: float
    queue_position: int | None


def progress_of(generation: Generation) -> Progress:
    outputs = generation.outputs
    total = sum(len(output.prompt_token_ids) for output in outputs)
    cache = sum(output.num_cached_tokens for output in outputs)
    computed = sum(output.metrics.num_processed_tokens for output in outputs)
    arrival = min(output.metrics.arrival_time for output in outputs)
    return Progress(
        total,
        cache,
        min(total, cache + computed),
        (time.monotonic() - arrival) * 1e3,
        generation.queue_position(PROGRESS_SECONDS),
    )
