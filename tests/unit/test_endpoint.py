"""A route of the server, called as the server for HTTP calls it."""

import asyncio
from asyncio import Transport
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from pellucid.server.access import ANYONE
from pellucid.server.body_memory import BodyMemory
from pellucid.server.config import Limits
from pellucid.server.endpoint import Call, Endpoint, Reply, StreamClock, json_reply
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
        endpoint = Endpoint(handle, Limits(), clock, bodies, ANYONE.role, lambda caller: None)
        await endpoint(scope, receive, send)

    asyncio.run(main())
    assert calls == ([] if is_gone else [b"{}"])
    assert sent == ([] if is_gone else ["http.response.start", "http.response.body"])
