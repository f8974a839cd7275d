"""The application where another server has the connections: parts of a reply go by way of ASGI's `send`."""

import asyncio
from asyncio import Transport
from typing import cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.server.http_protocol import EXTENSION, BodyWriter

MAX_UNSENT_BYTES = 64 << 10  # of a reply; with more, its client counts as slow


class AsgiBodies:
    """Gives each call a `BodyWriter`, which `http_protocol` gives it where the connections are our own.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reply = _Reply(receive, send)
        extensions = {**scope.get("extensions", {}), EXTENSION: {"body_writer": reply.writer}}
        try:
            await self._app({**scope, "extensions": extensions}, reply.receive, reply.send)
        finally:
            reply.close()


class _Reply:
    """Stands where a connection's transport would: chunks are written to it.

    Attributes:
        writer: of the reply's body.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._unsent: list[bytes] = []
        self._num_unsent = 0  # bytes
        self._sending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.writer = BodyWriter(cast(Transport, self), asyncio.get_running_loop().time)

    # ---- for the writer

    def is_closing(self) -> bool:
        return self.writer.is_gone

    def write(self, chunk: bytes) -> None:
        """Takes a chunk, of which only the data go on: the other server makes chunks of its own."""
        self._unsent.append(chunk[chunk.index(b"\r\n") + 2 : -2])
        self._num_unsent += len(self._unsent[-1])
        if self._num_unsent > MAX_UNSENT_BYTES:
            self.writer.is_paused = True
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_unsent())

    # ---- for the application

    async def receive(self) -> Message:
        """After the body, this object waits for the client to go."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._watching = asyncio.create_task(self._wait_until_gone())
        return message

    async def send(self, message: Message) -> None:
        """Sends a message after all chunks."""
        if self._sending is not None:
            await self._sending
        if not self.writer.is_gone:
            await self._send(message)

    def close(self) -> None:
        for task in (self._sending, self._watching):
            if task is not None:
                task.cancel()

    # ----

    async def _send_unsent(self) -> None:
        try:
            while self._unsent and not self.writer.is_gone:
                body, self._num_unsent = b"".join(self._unsent), 0
                self._unsent.clear()
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
                if self.writer.is_paused:
                    self.writer.is_paused = False
                    self.writer.on_writable()
        except OSError:
            self._end()
        finally:
            self._sending = None

    async def _wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end()

    def _end(self) -> None:
        if not self.writer.is_gone:
            self.writer.is_gone = True
            self.writer.on_gone()
