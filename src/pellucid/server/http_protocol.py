"""uvicorn's HTTP protocol with bounds on what comes before a body, and with a way to write parts of a reply at once."""

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pellucid.server.config import Limits

EXTENSION = "pellucid"  # of ASGI: each scope has a body_writer by this name


def chunk_format(*parts: bytes) -> bytes:
    """The format of chunks (RFC 9112, section 7.1) that differ only in what stands between these parts.

    `chunk_format(before, after) % (size, between)` is a chunk; the size is that of all three together.
    """
    return b"%x\r\n" + b"%b".join(part.replace(b"%", b"%%") for part in parts) + b"\r\n"


_CHUNK = chunk_format(b"", b"")


class BodyWriter:
    """Writes chunks of a reply's body to its connection without waiting.

    ASGI's `send` is a coroutine, so each token would have to wake a task, which takes longer than writing its
    frame. `send` begins and ends the reply.

    Attributes:
        is_paused: the client has not taken the earlier chunks; further chunks are held in memory.
        on_writable: called when the client has taken them.
        last_time: when the last chunk was written, on the event loop's clock.
    """

    __slots__ = ("_clock", "_transport", "is_paused", "last_time", "on_writable")

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self.is_paused = False
        self.on_writable: Callable[[], None] = _nothing
        self.last_time = clock()

    def write(self, data: bytes) -> None:
        """Sends data as a chunk."""
        self.write_chunk(_CHUNK % (len(data), data))

    def write_chunk(self, chunk: bytes) -> None:
        """Sends a whole chunk; does nothing if the client has gone."""
        self.last_time = self._clock()
        if not self._transport.is_closing():
            self._transport.write(chunk)


def _nothing() -> None:
    pass


def bounded_http_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol of one server's connections: a class, because uvicorn makes one for each."""

    class BoundedHttpProtocol(HttpToolsProtocol):
        """Closes a connection whose request line and headers are too long or too slow.

        httptools itself holds all received bytes until a header ends.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0  # of an unfinished head
            self._in_head = True
            self._head_timer: TimerHandle | None = None

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._body_writer = BodyWriter(transport, self.loop.time)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                self._head_bytes += len(data)
            super().data_received(data)
            if self._in_head and self._head_bytes > limits.max_header_bytes:
                self.transport.write(
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
                    b"content-length: 0\r\nconnection: close\r\n\r\n"
                )
                self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._body_writer.is_paused = True

        def resume_writing(self) -> None:
            super().resume_writing()
            self._body_writer.is_paused = False
            self._body_writer.on_writable()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {EXTENSION: {"body_writer": self._body_writer}}
            if not self._in_head:  # a later request of this connection
                self._in_head, self._head_bytes = True, 0
                self._await_head()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_timer()
            super().on_headers_complete()

        def _await_head(self) -> None:
            self._head_timer = self.loop.call_later(limits.header_seconds, self.transport.close)

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return BoundedHttpProtocol
