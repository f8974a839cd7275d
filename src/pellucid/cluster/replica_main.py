"""The process of a replica on this machine, which serves the front that has started it.

`python -m pellucid.cluster.replica_main FD` is told all else by the first message on the socket FD.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from pellucid.async_engine import AsyncLLMEngine
from pellucid.cluster.channel import Channel
from pellucid.cluster.messages import CannotStart, Start, Stop, ToReplica, decode_to_replica, encode
from pellucid.cluster.replica import Replica, load_engine
from pellucid.cluster.replica_process import STAGE_LOST_STATUS
from pellucid.stages.link import RETRY_SECONDS, StageAwayError


async def serve(end: socket.socket) -> None:
    """Serves the front at the other end of a socket, until the front says so or has ended."""
    channel = await Channel.over(end)
    async for frame in channel.frames():
        (start,) = decode_to_replica(frame)
        assert isinstance(start, Start)
        await _serve(channel, start)
        break
    await channel.drain()


class _Inbox:
    """What the front sends; it is read while the engine loads, too.

    Attributes:
        has_ended: the front has ended, or has told this process to end.
    """

    def __init__(self, channel: Channel) -> None:
        self.has_ended = asyncio.Event()
        self._messages: asyncio.Queue[ToReplica | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(channel))

    async def messages(self) -> AsyncIterator[ToReplica]:
        """Until the front has ended."""
        while (message := await self._messages.get()) is not None:
            yield message

    async def _read(self, channel: Channel) -> None:
        async for frame in channel.frames():
            for message in decode_to_replica(frame):
                self._messages.put_nowait(message)
                if isinstance(message, Stop):
                    self.has_ended.set()
        self._messages.put_nowait(None)
        self.has_ended.set()


async def _serve(channel: Channel, start: Start) -> None:
    if start.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, start.cores)  # before there are threads, which inherit it
    inbox = _Inbox(channel)
    try:
        engine = await _load(inbox, start)
    except (ValueError, OSError, RuntimeError) as error:
        channel.send(encode([CannotStart(str(error))]))
        return
    replica = Replica(engine)
    session = await replica.serve(channel.send)
    informing = asyncio.create_task(replica.keep_fronts_informed())
    async for message in inbox.messages():
        if isinstance(message, Stop):
            informing.cancel()
            await engine.shutdown()
            return
        session.obey(message)
    os._exit(0)  # the front has ended: nobody waits for anything


async def _load(inbox: _Inbox, start: Start) -> AsyncLLMEngine:
    while True:
        try:
            return await asyncio.to_thread(
                load_engine, start.config, start.max_requests, _end_without_stage
            )
        except StageAwayError as error:
            if not start.waits_for_stages:
                raise
            sys.stderr.write(f"a replica waits: {error}\n")
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(inbox.has_ended.wait(), RETRY_SECONDS)
            os._exit(0)  # nobody waits for anything


def _end_without_stage() -> None:
    """Requests go on in other replicas at once, as when this process had been killed, and none fails."""
    os._exit(STAGE_LOST_STATUS)


def main(arguments: Sequence[str]) -> None:
    asyncio.run(serve(socket.socket(fileno=int(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
