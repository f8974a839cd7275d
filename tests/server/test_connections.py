"""Connections that never end: idle, trickling and never reading ones keep nobody out."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from pellucid.server.config import Limits, ServerConfig
from pellucid.server.connections import Connections, client_of
from pellucid.server.http_protocol import EXTENSION
from pellucid.server.run import listen, make_uvicorn_config
from support.http_server import TIMEOUT

LARGE = b"x" * (32 << 20)  # more than the system's buffers of a connection hold
GET = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
TRICKLING_BODY = b"POST /refused HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n{"


@dataclass
class App:
    """Replies by path.

    Attributes:
        asked: the path of each call that has arrived.
        left: what clients did not take to its end.
    """

    asked: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked.append(path)
        status = 401 if path == "/refused" else 200
        body = LARGE if path in ("/large", "/parts") else b"ok"
        headers = [] if path == "/stream" else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if path == "/stream":
            scope["extensions"][EXTENSION]["body_writer"].write(LARGE)
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.append(path)
            return
        if path == "/parts":  # the second one when the client has taken the first
            await send(
                {"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True}
            )
            body = body[len(body) // 2 :]
        await send({"type": "http.response.body", "body": body})


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@dataclass
class Served:
    address: tuple[str, int]
    server: uvicorn.Server
    app: App

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, own_address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.address, TIMEOUT, (own_address, 0))

    def wait_for_connections(self, number: int) -> None:
        wait_until(lambda: self.num_connections == number)


@contextmanager
def served(**limits: Any) -> Iterator[Served]:
    config = ServerConfig(port=0, limits=Limits(**limits))
    app = App()
    with listen(config) as listener:
        uvicorn_config = make_uvicorn_config(config, app)
        uvicorn_config.timeout_keep_alive = int(TIMEOUT)  # a slow machine ends no idle connection
        server = uvicorn.Server(uvicorn_config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield Served(listener.getsockname()[:2], server, app)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(TIMEOUT)


def answered(connection: socket.socket) -> bool:
    """Whether a call gets its whole reply, which may come in pieces."""
    reply = b""
    with suppress(ConnectionError):
        connection.sendall(GET % b"/")
        while not reply.endswith(b"ok") and (piece := connection.recv(1000)):
            reply += piece
    return reply.startswith(b"HTTP/1.1 200") and reply.endswith(b"ok")


@pytest.mark.parametrize("after_a_reply", [False, True])
@pytest.mark.parametrize("sent", [b"\r\n", b"GET / HTTP", TRICKLING_BODY])
def test_what_has_begun_must_arrive_in_time(sent: bytes, after_a_reply: bool) -> None:
    """A line end after a reply began no message, and ended the time of an idle connection; a body after a 401 too."""
    with served(header_seconds=0.2, body_seconds=0.2) as server, ExitStack() as stack:
        connection = stack.enter_context(server.connect())
        if after_a_reply:
            while not answered(connection):  # its head was late: the machine had stalled
                connection = stack.enter_context(server.connect())
        connection.sendall(sent)
        begun = time.monotonic()
        while connection.recv(1000):
            pass
        assert time.monotonic() - begun < TIMEOUT / 2  # an idle connection is closed after TIMEOUT
        server.wait_for_connections(0)


def test_a_head_that_is_too_large_ends_its_connection() -> None:
    """Not when the time of a head is over: the rest of it is not read."""
    with (
        served(max_header_bytes=1000, header_seconds=600) as server,
        server.connect() as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nx-long: " + b"a" * 1000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431")
        assert connection.recv(100) == b""


@pytest.mark.parametrize(("path", "taken"), [(b"/large", 0), (b"/large", 8 << 20), (b"/stream", 0)])
def test_a_client_that_takes_nothing_is_given_up(path: bytes, taken: int) -> None:
    with served(write_seconds=0.2) as server, server.connect() as connection:
        connection.sendall(GET % path)
        with suppress(ConnectionError):  # or nothing more, after its first bytes
            while taken > 0 and (piece := connection.recv(1 << 20)):
                taken -= len(piece)
        wait_until(lambda: server.app.asked)
        server.wait_for_connections(0)
        expected = ["/stream"] if path == b"/stream" else []
        # The handler hears of it after the connection has gone.
        wait_until(lambda: server.app.left == expected)


def test_a_client_that_takes_little_at_a_time_is_not_given_up() -> None:
    def take(write_seconds: float) -> tuple[int, float]:
        """The bytes that came, and the longest time between two pieces."""
        size, longest = 0, 0.0
        with served(write_seconds=write_seconds) as server, server.connect() as connection:
            connection.sendall(GET % b"/parts")
            while size < len(LARGE):
                begun = time.monotonic()
                time.sleep(0.02)  # in all, several times as long as it may take nothing
                try:
                    taken = len(connection.recv(1 << 20))
                except ConnectionError:
                    taken = 0
                longest = max(longest, time.monotonic() - begun)
                if not taken:
                    break
                size += taken
        return size, longest

    for write_seconds in (0.3, 3.0, 30.0):  # more, where the machine itself stalled
        size, longest = take(write_seconds)
        if size > len(LARGE) or longest < write_seconds / 4:
            break
    assert size > len(LARGE)


def test_idle_connections_of_a_client_make_room_for_its_next_one_and_others_are_not_touched() -> (
    None
):
    with served(max_connections_per_client=3) as server, ExitStack() as stack:
        other = stack.enter_context(server.connect("127.0.0.2"))
        own = [stack.enter_context(server.connect()) for _ in range(3)]
        server.wait_for_connections(4)
        assert answered(own[0])  # now the one that was idle last
        fourth = stack.enter_context(server.connect())
        assert own[1].recv(1) == b""
        for name, connection in {
            "used": own[0],
            "idle": own[2],
            "new": fourth,
            "of another client": other,
        }.items():
            assert answered(connection), name


def test_a_client_whose_connections_are_busy_is_refused_and_others_are_served() -> None:
    with served(max_connections_per_client=2) as server, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(server.connect()).sendall(GET % b"/stream")
        wait_until(lambda: len(server.app.asked) == 2)
        with server.connect() as refused:
            assert refused.recv(1000).startswith(b"HTTP/1.1 503")
        with server.connect("127.0.0.2") as other:
            other.sendall(GET % b"/")
            assert other.recv(1000).startswith(b"HTTP/1.1 200")


@dataclass(eq=False)
class FakeConnection:
    idle_since: float | None
    aborted: bool = False

    def abort(self) -> None:
        self.aborted = True


def test_a_full_server_closes_the_idlest_connection_of_the_busiest_client() -> None:
    connections = Connections(max_all=4, max_per_client=3)
    busy = [FakeConnection(since) for since in (3.0, 1.0, None)]
    quiet = FakeConnection(0.0)
    assert all(connections.admit(each, "busy") for each in busy)
    assert connections.admit(quiet, "quiet")
    assert connections.admit(FakeConnection(5.0), "new")
    assert [each.aborted for each in busy] == [False, True, False]
    busy[0].idle_since = None
    assert not connections.admit(FakeConnection(6.0), "another")
    connections.discard(busy[0], "busy")
    assert connections.admit(FakeConnection(6.0), "another")
    assert not quiet.aborted


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_whoever_has_a_network_of_ipv6_is_one_client(address: str, client: str) -> None:
    assert client_of(address) == client
