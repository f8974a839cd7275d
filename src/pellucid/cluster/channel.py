"""Frames of bytes over a pair of sockets between two processes: their length in 4 bytes, then the bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

LENGTH_BYTES = 4


class Channel:
    """One end. Its methods belong to one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Channel":
        """Owns a connected socket from now on."""
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, frame: bytes) -> None:
        """Does not wait. What the other end can no longer read is lost: `frames` ends then."""
        if self._writer.is_closing():
            return
        self._writer.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)

    async def frames(self) -> AsyncIterator[bytes]:
        """What the other end sends, until it has ended."""
        try:
            while True:
                length = await self._reader.readexactly(LENGTH_BYTES)
                yield await self._reader.readexactly(int.from_bytes(length, "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def drain(self) -> None:
        """Waits until all was sent, and closes this end."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
