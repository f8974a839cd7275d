"""uvicorn's HTTP protocol with bounds on what comes before a body: its size and its time."""

from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pellucid.server.config import Limits


def bounded_http_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol of one server's connections: a class, because uvicorn makes one for each."""

    class BoundedHttpProtocol(HttpToolsProtocol):
        """Closes a connection whose request line and headers are too long or too slow.

        httptools itself holds whatever comes until a header ends.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0  # of an unfinished head
            self._in_head = True
            self._head_timer: TimerHandle | None = None

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
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

        def on_message_begin(self) -> None:
            super().on_message_begin()
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
