"""Streams of the protocols: frames, errors within a stream, and progress before the first token."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from pellucid.outputs import CompletionDelta
from pellucid.server.errors import ApiError, error_of
from pellucid.server.generation import Generation

_log = logging.getLogger("pellucid.server")

SSE_KEEPALIVE = b": keepalive\n\n"
PROGRESS_SECONDS = 0.25


def sse(data: bytes) -> bytes:
    """A server-sent event without a name (WHATWG HTML, section 9.2). JSON has no bare line ends."""
    return b"data: " + data + b"\n\n"


def sse_event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


async def failing_with_a_frame(
    frames: AsyncGenerator[bytes, None],
    failure_frame: Callable[[ApiError, str], bytes],
    request_id: str,
) -> AsyncGenerator[bytes, None]:
    """Frames, and if they fail on their way one that says so: the status was sent long ago.

    Args:
        frames: of one reply.
        failure_frame: the end of a failed stream in its protocol.
        request_id: of the call.
    """
    try:
        async for frame in frames:
            yield frame
    except Exception as error:
        refusal = error_of(error)
        if refusal.code == "internal_error":
            _log.exception("%s: failed within a stream", request_id)
        yield failure_frame(refusal, request_id)


@dataclass(frozen=True)
class Progress:
    """How far the prompts of a request have come.

    Attributes:
        total: their tokens.
        cache: of these, found in the prefix cache.
        processed: of these, computed or found.
        time_ms: since the request came.
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
        generation.queue_position,
    )


async def with_progress(
    generation: Generation,
) -> AsyncIterator[tuple[int, CompletionDelta] | Progress]:
    """The deltas of a request, and before the first one its progress, some times a second."""
    deltas = generation.deltas()
    first = asyncio.ensure_future(anext(deltas, None))
    try:
        while not first.done():
            yield progress_of(generation)
            await asyncio.wait({first}, timeout=PROGRESS_SECONDS)
    finally:
        if not first.done():
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
    if (delta := first.result()) is not None:
        yield delta
        async for delta in deltas:
            yield delta
