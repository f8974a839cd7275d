"""The ASGI side of a route: reads the body, runs the handler, sends its reply, and cancels both when the
client disconnects."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from pellucid.async_engine import Signal
from pellucid.server.api_keys import ANYONE, Caller, Role
from pellucid.server.body_memory import BodyMemory, HeldBody
from pellucid.server.call_warnings import Warnings
from pellucid.server.config import Limits
from pellucid.server.errors import ApiError, ErrorShape, error_of
from pellucid.server.http_protocol import EXTENSION, BodyWriter, do_nothing

_log = logging.getLogger("pellucid.server")
SSE_KEEPALIVE = b": keepalive\n\n"
CALL_LOG = logging.getLogger("pellucid.calls")  # a JSON object for each call, at the level INFO


@dataclass
class Call:
    """One call of a client.

    Attributes:
        request_id: chosen by the server, never by the client: it names the call in errors, logs and the engine.
        caller: the owner of the call's key.
        path: without the query.
        path_params: the variable parts of the path, by name.
        query: parameters by name; the last one of several with the same name.
        headers: by name in small letters; the last one of several with the same name.
        held_body: what the body, and what was decoded from it, take of the server's memory.
        body: the whole body; empty once it is decoded.
        warnings: the reply's warnings about fields that have no effect.
        resources: closed when the call ends, however it ends.
    """

    request_id: str
    caller: Caller
    path: str
    path_params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    held_body: HeldBody
    body: bytes = b""
    warnings: Warnings = field(default_factory=Warnings)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)


@dataclass(frozen=True)
class Reply:
    """A reply that is sent at once."""

    body: bytes
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class StreamedReply(Protocol):
    """A reply that is sent while it is generated."""

    @property
    def media_type(self) -> str: ...

    def keepalive(self) -> bytes:
        """Makes a frame that clients ignore, sent after some time without other frames."""

    async def send_to(self, sender: "ReplySender") -> bytes:
        """Writes complete frames of the protocol. Returns the last ones, which go with the end of the reply: to send
        both takes one system call. Does not raise: a failure is a frame as well."""


@dataclass(frozen=True)
class GeneratedReply:
    """A streamed reply whose frames, server-sent events, come from a generator.

    Attributes:
        frames: each is written when the client has taken most of the earlier ones.
    """

    frames: AsyncGenerator[bytes, None]
    media_type: str = "text/event-stream"

    def keepalive(self) -> bytes:
        return SSE_KEEPALIVE

    async def send_to(self, sender: "ReplySender") -> bytes:
        async with aclosing(self.frames):
            async for frame in self.frames:
                sender.write(frame)
                await sender.writable()
        return b""


Handler: TypeAlias = Callable[[Call], Awaitable[Reply | StreamedReply]]


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(msgspec.json.encode(value), status)


@dataclass(eq=False)
class Endpoint:
    """An ASGI application for one route.

    Args:
        handler: makes the reply to a call; cancelled when the client disconnects.
        limits: of the body, and of the time to send it.
        clock: watches the streams of all routes.
        bodies: the memory of the bodies of all routes.
        role: the role that a caller needs.
        gate: raises an ApiError for a call that would be refused whatever its body says.
    """

    _handler: Handler
    _limits: Limits
    _clock: "StreamClock"
    _bodies: BodyMemory
    _role: Role
    _gate: Callable[[Caller], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id, caller = scope["pellucid"]
        address, _ = scope["client"] or ("", 0)
        owner = address if caller is ANYONE else caller.name
        call = Call(
            request_id,
            caller,
            scope["path"],
            scope.get("path_params", {}),
            dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            HeldBody(self._bodies, owner),
        )
        call.resources.callback(call.held_body.release)
        body_writer = scope["extensions"][EXTENSION]["body_writer"]
        is_head = scope["method"] == "HEAD"
        sender = ReplySender(call, send, body_writer, is_head)
        started = time.monotonic()
        try:
            async with call.resources:
                await self._answer(call, receive, sender)
        except _ClientGoneError:
            _log.info("%s %s: the client went away", request_id, call.path)
        except Exception as error:
            refusal = error_of(error)
            if refusal.code == "internal_error":
                _log.exception("%s %s: failed", request_id, call.path)
            if not sender.has_started:
                shape = ErrorShape.of_path(call.path)
                body = shape.body(refusal, request_id)
                with suppress(OSError):
                    await sender.send_whole(Reply(body, refusal.status, headers=refusal.headers))
        finally:
            if CALL_LOG.isEnabledFor(logging.INFO):
                seconds = time.monotonic() - started
                CALL_LOG.info(_call_line(call, scope["method"], sender.status, seconds))

    async def _answer(self, call: Call, receive: Receive, sender: "ReplySender") -> None:
        if self._role is Role.ADMIN and call.caller.role is not Role.ADMIN:
            raise ApiError(
                403, f"{call.path} needs a key with the role admin", code="admin_key_needed"
            )
        self._gate(call.caller)
        seconds = self._limits.body_seconds
        late = ApiError(408, f"the body did not arrive within {seconds:g} s")
        with _interruptible() as interrupt:
            timer = asyncio.get_running_loop().call_later(seconds, interrupt, late)
            try:
                call.body = await self._read_body(call, receive)
            finally:
                timer.cancel()
        with sender.ending_when_gone():
            await self._reply(call, sender)

    async def _read_body(self, call: Call, receive: Receive) -> bytes:
        limit = self._limits.max_body_bytes
        encoding = call.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise ApiError(415, f"Content-Encoding={encoding!r}: must be left out")
        too_large = ApiError(413, f"the body has more than the {limit} bytes that are allowed")
        with suppress(ValueError):
            if int(call.headers.get("content-length", "0")) > limit:
                raise too_large
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGoneError
            chunks.append(message.get("body", b""))
            if call.held_body.size + len(chunks[-1]) > limit:
                raise too_large
            call.held_body.grow(len(chunks[-1]))
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _reply(self, call: Call, sender: "ReplySender") -> None:
        reply = await self._handler(call)
        call.held_body.release()
        if isinstance(reply, Reply):
            await sender.send_whole(reply)
            return
        await sender.start(200, reply.media_type, {"cache-control": "no-store"})
        if sender.is_head:
            await sender.end()
            return
        call.resources.callback(self._clock.watch(sender, reply.keepalive))
        await sender.end(await reply.send_to(sender))


class _ClientGoneError(Exception):
    """The client no longer waits for the reply."""


class ReplySender:
    """Sends one reply, and records when it last sent something.

    Attributes:
        is_head: the call asks for the head of the reply alone.
        status: None: nothing was sent.
        body_writer: writes frames of a reply that has started.
    """

    def __init__(self, call: Call, send: Send, body_writer: BodyWriter, is_head: bool) -> None:
        loop = asyncio.get_running_loop()
        self._call = call
        self._send = send
        self.is_head = is_head
        self.body_writer = body_writer
        self.body_writer.last_time = loop.time()
        self.has_started = False
        self.status: int | None = None

    def write(self, frame: bytes) -> None:
        """Sends a frame of a reply that has started; held in memory while the client takes nothing."""
        self.body_writer.write(frame)

    @contextmanager
    def ending_when_gone(self) -> Iterator[None]:
        """Ends the block with a `_ClientGoneError` when the client disconnects."""
        with _interruptible() as interrupt:
            if self.body_writer.is_gone:
                raise _ClientGoneError
            self.body_writer.on_gone = lambda: interrupt(_ClientGoneError())
            try:
                yield
            finally:
                self.body_writer.on_gone = do_nothing

    async def writable(self) -> None:
        """Waits until the client has taken what was sent."""
        if self.body_writer.is_paused:
            taken = Signal(asyncio.get_running_loop())
            self.body_writer.on_writable = taken.set
            await taken.wait()

    async def send_whole(self, reply: Reply) -> None:
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        await self.start(reply.status, reply.media_type, headers)
        await self._send(
            {"type": "http.response.body", "body": b"" if self.is_head else reply.body}
        )

    async def start(self, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        self.has_started = True
        self.status = status
        pairs = {
            "content-type": media_type,
            "x-request-id": self._call.request_id,
            "request-id": self._call.request_id,
            "x-content-type-options": "nosniff",  # a text of a model is never a page
            **headers,
        }
        if self._call.warnings:  # quoted: the names of unknown fields are the client's
            pairs["x-pellucid-warnings"] = json.dumps(self._call.warnings)[:2048]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def end(self, last: bytes = b"") -> None:
        """Ends the reply with its last frames."""
        await self._send({"type": "http.response.body", "body": last})


class StreamClock:
    """Sends keepalives on streams without other frames.

    One task does this for all streams, and ends when there are none.

    Args:
        keepalive_seconds: seconds without a frame after which a stream gets a keepalive; up to a quarter earlier.
    """

    def __init__(self, keepalive_seconds: float) -> None:
        self._keepalive_seconds = keepalive_seconds
        self._keepalives: dict[ReplySender, Callable[[], bytes]] = {}
        self._ticking: asyncio.Task[None] | None = None

    def watch(self, sender: ReplySender, keepalive: Callable[[], bytes]) -> Callable[[], None]:
        """Begins to watch a stream that has started.

        Args:
            keepalive: makes a frame that clients ignore.

        Returns:
            A function that stops watching.
        """
        self._keepalives[sender] = keepalive
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        return lambda: self._forget(sender)

    def _forget(self, sender: ReplySender) -> None:
        del self._keepalives[sender]

    async def _tick(self) -> None:
        while self._keepalives:
            await asyncio.sleep(self._keepalive_seconds / 4)
            now = asyncio.get_running_loop().time()
            for sender, keepalive in self._keepalives.items():
                writer = sender.body_writer
                is_silent = now - writer.last_time >= self._keepalive_seconds * 0.75
                if is_silent and not writer.is_paused:
                    sender.write(keepalive())


def _call_line(call: Call, method: str, status: int | None, seconds: float) -> str:
    """The log line of a call, without keys, prompts and answers."""
    return json.dumps(
        {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "request_id": call.request_id,
            "method": method,
            "path": call.path,
            "caller": call.caller.name,
            "status": status,
            "seconds": round(seconds, 6),
            "body_bytes": call.held_body.size,
        }
    )


@contextmanager
def _interruptible() -> Iterator[Callable[[Exception], None]]:
    """Gives a function that ends the block from a callback of the event loop: it cancels the block's task, and the
    block raises the function's error. A task of its own for what may end would cost each call more than its work."""
    task = asyncio.current_task()
    assert task is not None
    found: list[Exception] = []

    def interrupt(error: Exception) -> None:
        found.append(error)
        task.cancel()

    try:
        yield interrupt
    except asyncio.CancelledError:
        if not found:
            raise
        raise found[0] from None
