"""The frames of what the live page runs."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any

import msgspec

from pellucid.server.errors import error_of
from pellucid.server.streaming import sse


async def event_frames(
    about: dict[str, Any],
    failed: str,
    events: AsyncGenerator[dict[str, Any], None],
    turn: AbstractAsyncContextManager[object] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Each event as a server-sent event; after an error, one that says so.

    Args:
        about: fields that all events begin with.
        failed: the name of the event of an error.
        events: of a run.
        turn: held meanwhile; None: runs need none.
    """
    async with turn or nullcontext(), aclosing(events):
        try:
            async for event in events:
                yield sse(msgspec.json.encode({**about, **event}))
        except Exception as error:
            message = error_of(error).message
            yield sse(msgspec.json.encode({**about, "ev": failed, "msg": message}))
