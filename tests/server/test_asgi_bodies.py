"""The application behind another server's HTTP, of which only ASGI's two functions are known."""

import asyncio
import json
from typing import Any

import pytest

from pellucid.async_engine import AsyncLLMEngine
from pellucid.server.app import make_app, make_serving
from pellucid.server.asgi_bodies import MAX_UNSENT_BYTES, AsgiBodies
from pellucid.server.config import ServerConfig
from pellucid.server.http_protocol import EXTENSION
from support.bundled import bundled_engine

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1")],
    "client": ("127.0.0.1", 9),
}


class Client:
    """Sends one body, and takes the reply until it goes."""

    def __init__(self, body: Any) -> None:
        self._body = json.dumps(body).encode()
        self._has_sent = False
        self.gone = asyncio.Event()
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.messages: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": self._body}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self.may_take.wait()
        self.messages.append(message)


def test_a_stream_is_that_of_the_whole_reply() -> None:
    async def test() -> None:
        engine = AsyncLLMEngine(bundled_engine())
        app = AsgiBodies(make_app(make_serving(engine, ServerConfig())))
        body = {"prompt": "Once", "max_tokens": 30, "ignore_eos": True, "seed": 3}
        whole, streamed = Client(body), Client({**body, "stream": True})
        for client in (whole, streamed):
            await app(SCOPE, client.receive, client.send)
            assert client.messages[0]["status"] == 200
            assert not client.messages[-1].get("more_body", False)
        expected = json.loads(whole.messages[1]["body"])["choices"][0]["text"]
        lines = b"".join(each["body"] for each in streamed.messages[1:]).decode().splitlines()
        frames = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(frame["choices"][0]["text"] for frame in frames) == expected
        assert lines[-2:] == ["data: [DONE]", ""] and len(streamed.messages) > 2
        left = Client({**body, "max_tokens": 900, "stream": True})
        calling = asyncio.create_task(app(SCOPE, left.receive, left.send))
        while len(left.messages) < 2:
            await asyncio.sleep(0.01)
        left.gone.set()
        await calling  # its request is aborted
        assert left.messages[-1]["more_body"]
        await engine.shutdown()

    asyncio.run(asyncio.wait_for(test(), 120))


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_that_takes_nothing_is_slow(fails: bool) -> None:
    async def test() -> None:
        client = Client(None)
        seen: list[str] = []

        async def send(message: dict[str, Any]) -> None:
            await client.send(message)
            if fails:
                raise ConnectionResetError

        async def app(scope: Any, receive: Any, send: Any) -> None:
            writer = scope["extensions"][EXTENSION]["body_writer"]
            writer.on_writable = lambda: seen.append("writable")
            writer.on_gone = lambda: seen.append("gone")
            client.may_take.clear()
            for _ in range(3):
                writer.write(b"x" * MAX_UNSENT_BYTES)
            assert writer.is_paused
            client.may_take.set()
            await send({"type": "http.response.body", "body": b"end"})

        await AsgiBodies(app)(SCOPE, client.receive, send)
        bodies = b"".join(each["body"] for each in client.messages)
        data = b"x" * 3 * MAX_UNSENT_BYTES
        assert (bodies, seen) == ((data, ["gone"]) if fails else (data + b"end", ["writable"]))

    asyncio.run(test())
