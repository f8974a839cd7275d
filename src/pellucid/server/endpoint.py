"""The ASGI side of a route: reads the body, runs the handler, sends its reply, and cancels both when the
client disconnects."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from pellucid.server.api_keys import Caller, Role
from pellucid.server.config import Limits
from pellucid.server.errors import ApiError, ErrorShape, error_of

_log = logging.getLogger("pellucid.server")
CALL_LOG = logging.getLogger("pellucid.calls")  # a JSON object for each call, at the level INFO


@dataclass
class Call:
    """One call of a client.

    Attributes:
        request_id: ours, never the client's: it names the call in errors, logs and the engine.
        caller: whose key it came with.
        path: as it was routed.
        path_params: what the route's pattern found in it.
        query: what follows it; of several of one name the last.
        headers: by name in small letters; of several of one name the last.
        body: whole.
        warnings: what the reply says about fields that have no effect.
        resources: what is closed when the call ends, however it ends.
    """

    request_id: str
    caller: Caller
    path: str
    path_params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    warnings: list[str] = field(default_factory=list)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)


@dataclass(frozen=True)
class Reply:
    """A reply that is sent at once."""

    body: bytes
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamedReply:
    """A reply that is sent as it is made.

    Attributes:
        frames: whole frames of the protocol. They do not raise: a failure is a frame too.
        keepalive: makes a frame without meaning, sent when there was nothing to send for some time.
    """

    frames: AsyncGenerator[bytes, None]
    keepalive: Callable[[], bytes]
    media_type: str = "text/event-stream"


Handler: TypeAlias = Callable[[Call], Awaitable[Reply | StreamedReply]]


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(msgspec.json.encode(value), status)


class Endpoint:
    """An ASGI application for one route.

    Args:
        handler: from the call to its reply; a call whose client goes away cancels it.
        limits: of the body, and of the time to send and take it.
        keepalive_seconds: silence after which a stream is sent its keepalive.
        role: what a caller needs.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        keepalive_seconds: float,
        role: Role = Role.INFERENCE,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._keepalive_seconds = keepalive_seconds
        self._role = role

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id, caller = scope["pellucid"]
        call = Call(
            request_id,
            caller,
            scope["path"],
            scope.get("path_params", {}),
            dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            b"",
        )
        sender = _Sender(call, send, scope["method"] == "HEAD")
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

    async def _answer(self, call: Call, receive: Receive, sender: "_Sender") -> None:
        if self._role is Role.ADMIN and call.caller.role is not Role.ADMIN:
            raise ApiError(
                403, f"{call.path} needs a key with the role admin", code="admin_key_needed"
            )
        try:
            body = self._read_body(call, receive)
            call.body = await asyncio.wait_for(body, self._limits.body_seconds)
        except asyncio.TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self._limits.body_seconds:g} s"
            ) from None
        await _unless_gone(receive, self._reply(call, sender))

    async def _read_body(self, call: Call, receive: Receive) -> bytes:
        limit = self._limits.max_body_bytes
        encoding = call.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise ApiError(415, f"Content-Encoding={encoding!r}: must be left out")
        too_large = ApiError(413, f"the body has more than the {limit} bytes that are allowed")
        with suppress(ValueError):
            if int(call.headers.get("content-length", "0")) > limit:
                raise too_large
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _reply(self, call: Call, sender: "_Sender") -> None:
        reply = await self._handler(call)
        if isinstance(reply, Reply):
            await sender.send_whole(reply)
            return
        keeping = asyncio.create_task(self._keep_alive(reply.keepalive, sender))
        call.resources.push_async_callback(_cancel, keeping)
        call.resources.push_async_callback(reply.frames.aclose)
        await sender.start(200, reply.media_type, {"cache-control": "no-store"})
        frames = asyncio.ensure_future(_send_frames(reply.frames, sender))
        call.resources.push_async_callback(_cancel, frames)
        # The keepalive ends first only if the client takes nothing.
        await asyncio.wait({frames, keeping}, return_when=asyncio.FIRST_COMPLETED)
        if not frames.done():
            raise _ClientGoneError
        frames.result()
        await _cancel(keeping)
        await sender.end()

    async def _keep_alive(self, keepalive: Callable[[], bytes], sender: "_Sender") -> None:
        """Sends a keepalive after each silence, until the client has not read for too long."""
        loop = asyncio.get_running_loop()
        patience = min(self._keepalive_seconds, self._limits.write_seconds)
        while True:
            await asyncio.sleep(patience / 4)
            silence = loop.time() - sender.last_time
            if sender.is_sending:
                if silence > self._limits.write_seconds:
                    return
            elif sender.has_started and silence >= self._keepalive_seconds * 0.75:
                await sender.send(keepalive())


class _ClientGoneError(Exception):
    """Nobody waits for the reply any more."""


class _Sender:
    """Sends one reply, and knows when it last did."""

    def __init__(self, call: Call, send: Send, is_head: bool) -> None:
        self._call = call
        self._send = send
        self._is_head = is_head
        self.has_started = False
        self.status: int | None = None  # None: nothing was sent
        self.is_sending = False
        self.last_time = asyncio.get_running_loop().time()
        self._clock = asyncio.get_running_loop().time

    async def send_whole(self, reply: Reply) -> None:
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        await self.start(reply.status, reply.media_type, headers)
        await self._send(
            {"type": "http.response.body", "body": b"" if self._is_head else reply.body}
        )

    async def start(self, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        self.has_started = True
        self.status = status
        pairs = {
            "content-type": media_type,
            "x-request-id": self._call.request_id,
            "request-id": self._call.request_id,
            **headers,
        }
        if self._call.warnings:  # quoted: the names of unknown fields are the client's
            pairs["x-pellucid-warnings"] = json.dumps(self._call.warnings)[:2048]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, frame: bytes) -> None:
        self.is_sending = True
        self.last_time = self._clock()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self.is_sending = False

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})


def _call_line(call: Call, method: str, status: int | None, seconds: float) -> str:
    """What the log says of a call: no key, and nothing of what was asked or answered."""
    return json.dumps(
        {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "request_id": call.request_id,
            "method": method,
            "path": call.path,
            "caller": call.caller.name,
            "status": status,
            "seconds": round(seconds, 6),
            "body_bytes": len(call.body),
        }
    )


async def _send_frames(frames: AsyncGenerator[bytes, None], sender: _Sender) -> None:
    async for frame in frames:
        await sender.send(frame)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does `work`, unless the client goes away before it is done: then it is cancelled.

    Raises:
        _ClientGoneError: the client went away.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _ClientGoneError
        working.result()
    finally:
        await _cancel(working)
        await _cancel(watching)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Future[Any]") -> None:
    """Ends a task; what it raises is of no interest any more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
