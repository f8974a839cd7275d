"""The process of a replica on this machine, which serves the front that has started it.

`python -m pellucid.cluster.replica_main FD` is told all else by the first message on the socket FD.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from pellucid.cluster.channel import Channel
from pellucid.cluster.messages import CannotStart, Start, Stop, decode_to_replica, encode
from pellucid.cluster.replica import Replica, load_engine


async def serve(end: socket.socket) -> None:
    """Serves the front at the other end of a socket, until the front says so or has ended."""
    channel = await Channel.over(end)
    async for frame in channel.frames():
        (start,) = decode_to_replica(frame)
        assert isinstance(start, Start)
        await _serve(channel, start)
        break
    await channel.drain()


async def _serve(channel: Channel, start: Start) -> None:
    if start.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, start.cores)  # before there are threads, which inherit it
    try:
        engine = await asyncio.to_thread(load_engine, start.config, start.max_requests)
    except (ValueError, OSError, RuntimeError) as error:
        channel.send(encode([CannotStart(str(error))]))
        return
    replica = Replica(engine)
    session = await replica.serve(channel.send)
    informing = asyncio.create_task(replica.keep_fronts_informed())
    async for frame in channel.frames():
        for message in decode_to_replica(frame):
            if isinstance(message, Stop):
                informing.cancel()
                await engine.shutdown()
                return
            session.obey(message)
    os._exit(0)  # the front has ended: nobody waits for anything


def main(arguments: Sequence[str]) -> None:
    asyncio.run(serve(socket.socket(fileno=int(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
