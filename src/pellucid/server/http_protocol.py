"""uvicorn's HTTP protocol with bounds on connections, and with a way to write parts of a reply at once."""

import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pellucid.server.config import Limits
from pellucid.server.connections import Connections, client_of

EXTENSION = "pellucid"  # of ASGI: each scope has a body_writer by this name
LINGER_SECONDS = 10.0  # in which a body may still arrive after the reply
_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 29\r\nconnection: close\r\n\r\ntoo many connections are open"
)


def chunk_format(*parts: bytes) -> bytes:
    """The format of chunks (RFC 9112, section 7.1) that differ only in what stands between these parts.

    `chunk_format(before, after) % (size, between)` is a chunk; the size is that of all three together.
    """
    return b"%x\r\n" + b"%b".join(part.replace(b"%", b"%%") for part in parts) + b"\r\n"


_CHUNK = chunk_format(b"", b"")


def do_nothing() -> None:
    pass


@dataclass(eq=False, slots=True)
class BodyWriter:
    """Writes chunks of a reply's body to its connection without waiting.

    ASGI's `send` is a coroutine, so each token would have to wake a task, which takes longer than writing its
    frame. `send` begins and ends the reply.

    Attributes:
        is_paused: the client has not taken the earlier chunks; further chunks are held in memory.
        on_writable: called when the client has taken them.
        is_gone: the connection has ended.
        on_gone: called when it ends.
        last_time: when the last chunk was written, on the event loop's clock.
    """

    _transport: Transport
    _clock: Callable[[], float]
    is_paused: bool = False
    on_writable: Callable[[], None] = do_nothing
    is_gone: bool = False
    on_gone: Callable[[], None] = do_nothing
    last_time: float = field(init=False)

    def __post_init__(self) -> None:
        self.last_time = self._clock()

    def write(self, data: bytes) -> None:
        """Sends data as a chunk."""
        self.write_chunk(_CHUNK % (len(data), data))

    def write_chunk(self, chunk: bytes) -> None:
        """Sends a whole chunk; does nothing if the client has gone."""
        self.last_time = self._clock()
        if not self._transport.is_closing():
            self._transport.write(chunk)


@lru_cache(maxsize=1)
def _headers_at(second: int) -> list[tuple[bytes, bytes]]:
    """The headers of every reply in a second since 1970."""
    return [(b"date", formatdate(second, usegmt=True).encode())]


def bounded_http_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol of one server's connections: a class, because uvicorn makes one for each."""
    connections = Connections(limits.max_connections, limits.max_connections_per_client)

    class BoundedHttpProtocol(HttpToolsProtocol):
        """Bounds the time that a connection may take for each part of a call, and the size of a head.

        Reading: the time of a head begins with the connection, and later with the first byte after a reply. A body
        that nobody reads any more, as the reply was sent, gets some seconds; the endpoint limits the others. Writing:
        a client must take something of what was sent in every `write_seconds`. httptools itself holds all received
        bytes until a head ends.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0  # of an unfinished head
            self._in_head = True
            self._in_body = False
            self._read_timer: TimerHandle | None = None  # of a head, or of a body that nobody reads
            self._write_timer: TimerHandle | None = None
            self._client = ""
            self._idle_since: float | None = None

        @property
        def idle_since(self) -> float | None:
            is_sent = self.transport.get_write_buffer_size() == 0
            return self._idle_since if is_sent and not self._has_call else None

        @property
        def _has_call(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def abort(self) -> None:
            self.transport.abort()

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._body_writer = BodyWriter(transport, self.loop.time)
            self._client = client_of(self.client[0] if self.client else "")
            self._idle_since = self.loop.time()
            self._limit_reading(limits.header_seconds)
            if not connections.admit(self, self._client):
                transport.write(_TOO_MANY_CONNECTIONS)
                self._close()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self, self._client)
            self._stop_read_timer()
            self._stop_write_timer()
            super().connection_lost(exc)
            self._body_writer.is_gone = True
            self._body_writer.on_gone()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self.server_state.default_headers = _headers_at(int(time.time()))
            if self._in_head:
                self._head_bytes += len(data)
            super().data_received(data)
            if not (self._in_head or self._in_body or self._has_call):
                self._begin_head()  # a line end before a request line begins no message
            if self._in_head and self._head_bytes > limits.max_header_bytes:
                self.transport.write(
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
                    b"content-length: 0\r\nconnection: close\r\n\r\n"
                )
                self._close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._body_writer.is_paused = True
            self._watch_writing()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._body_writer.is_paused = False
            self._stop_write_timer()
            if not self._has_call or self.transport.is_closing():
                self._watch_writing()  # of the last bytes
            self._body_writer.on_writable()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {EXTENSION: {"body_writer": self._body_writer}}
            if not self._in_head:  # a later request of this connection
                self._begin_head()

        def on_headers_complete(self) -> None:
            self._in_head, self._in_body = False, True
            self._stop_read_timer()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_body = False
            self._stop_read_timer()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._idle_since = self.loop.time()
            self._watch_writing()
            if (
                self._in_body
            ):  # a client that still sends should see the reply before it sees the end
                self._limit_reading(min(LINGER_SECONDS, limits.body_seconds))

        def _begin_head(self) -> None:
            self._in_head, self._head_bytes = True, 0
            self._limit_reading(limits.header_seconds)

        def _limit_reading(self, seconds: float) -> None:
            self._stop_read_timer()
            self._read_timer = self.loop.call_later(seconds, self._close)

        def _stop_read_timer(self) -> None:
            if self._read_timer is not None:
                self._read_timer.cancel()
                self._read_timer = None

        def _close(self) -> None:
            """Closes the connection once the client has taken what was sent, or takes nothing for too long."""
            self.transport.close()
            self._watch_writing()

        def _watch_writing(self) -> None:
            """Begins to wait for the client to take some of what was sent."""
            self._stop_write_timer()
            if num_unsent := self.transport.get_write_buffer_size():
                self._write_timer = self.loop.call_later(
                    limits.write_seconds, self._check_progress, num_unsent
                )

        def _check_progress(self, num_unsent_before: int) -> None:
            if self.transport.get_write_buffer_size() >= num_unsent_before:
                self.transport.abort()
            else:
                self._watch_writing()

        def _stop_write_timer(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()

    return BoundedHttpProtocol
