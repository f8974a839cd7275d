"""A route of the server, called as the server for HTTP calls it."""

import asyncio
from asyncio import Transport
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("uvicorn")

from pellucid.server import endpoint
from pellucid.server.access import ANYONE
from pellucid.server.body_memory import BodyMemory
from pellucid.server.config import Limits
from pellucid.server.endpoint import Call, Endpoint, Reply, StreamClock, json_reply
from pellucid.server.errors import ApiError, ErrorShape
from pellucid.server.http_protocol import EXTENSION, BodyWriter


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_client_that_leaves_as_its_body_ends_starts_nothing(is_gone: bool) -> None:
    """With a second call in the line of its connection, no message says that it has left."""
    calls, sent = [], []

    async def handle(call: Call) -> Reply:
        calls.append(call.body)
        return json_reply({})

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def main() -> None:
        writer = BodyWriter(Transport(), asyncio.get_running_loop().time)

        async def receive() -> dict[str, Any]:
            writer.is_gone = is_gone
            return {"type": "http.request", "body": b"{}"}

        scope = {
            "pellucid": ("r1", ANYONE),
            "client": None,
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [],
            "extensions": {EXTENSION: {"body_writer": writer}},
        }
        clock, bodies = StreamClock(15.0), BodyMemory(1 << 20)
        route = Endpoint(handle, Limits(), clock, bodies, ANYONE.role, lambda caller: None)
        await route(scope, receive, send)

    asyncio.run(main())
    assert calls == ([] if is_gone else [b"{}"])
    assert sent == ([] if is_gone else ["http.response.start", "http.response.body"])


def test_a_stream_that_is_silent_gets_signs_while_its_client_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams are looked at in every quarter of the time: a sign comes after three of them."""
    now, signs = 0.0, []
    body = SimpleNamespace(last_time=0.0, is_paused=False)

    def write(sign: bytes) -> None:
        signs.append((now, sign))
        body.last_time = now

    async def main() -> None:
        loop, clock = asyncio.get_running_loop(), StreamClock(8.0)
        ended = asyncio.Event()
        monkeypatch.setattr(loop, "time", lambda: now)

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            body.is_paused = now == 18.0
            if now == 30.0:
                forget()
                ended.set()

        monkeypatch.setattr(endpoint.asyncio, "sleep", sleep)
        sender = Mock(body_writer=body, write=write)
        forget = clock.watch(sender, lambda: b"sign")
        await ended.wait()

    asyncio.run(main())
    assert signs == [(6.0, b"sign"), (12.0, b"sign"), (20.0, b"sign"), (26.0, b"sign")]


def test_types_of_errors() -> None:
    """Agents decide by them what to do next."""
    types: dict[str, dict[int, str]] = {"openai": {}, "anthropic": {}}
    for status in (400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 431, 500, 501, 503):
        for shape, found in types.items():
            found[status] = ErrorShape(shape).fields(ApiError(status, "x"), "r")["error"]["type"]
    common = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    common |= {429: "rate_limit_error"}
    wrong = dict.fromkeys((400, 405, 408, 409, 413, 415, 431), "invalid_request_error")
    ours = dict.fromkeys((500, 501, 503), "server_error")
    assert types["openai"] == wrong | common | ours
    ours = {500: "api_error", 501: "api_error", 503: "overloaded_error"}
    assert types["anthropic"] == wrong | common | ours | {413: "request_too_large"}
