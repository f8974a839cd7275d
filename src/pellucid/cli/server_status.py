"""The status of a running pellucid server: its requests, its KV cache and its speed."""

import asyncio
import json
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from pellucid.server_client import ServerClient, ServerError

STAT_LIFETIME = 1.5  # seconds: the engine says how fast it is twice a second while it steps
RECONNECT_SECONDS = 1.0


@dataclass(frozen=True)
class ServerStatus:
    """As the server says: docs/server.md.

    Attributes:
        health: "ok", or what is wrong.
        requests: an object of /v1/requests for each request that is under way.
        kv: the object of /v1/kv.
        stat: the latest event `stat`; None: no step has ended for a while.
    """

    url: str
    model: str
    health: str
    requests: list[dict[str, Any]]
    kv: dict[str, Any]
    stat: dict[str, Any] | None

    def in_state(self, state: str) -> int:
        """Requests that are "running" or "waiting"."""
        return sum(request["state"] == state for request in self.requests)


class ServerWatch:
    """Reads the status of one server again and again."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._stat: tuple[float, dict[str, Any]] | None = None  # when it came, and what
        self._has_news = asyncio.Event()

    async def follow(self) -> None:
        """Keeps the latest event `stat`, until it is cancelled. Connections that end are opened again:
        `read` says what is wrong with the server."""
        path = "/v1/events?level=stat&ev=stat"
        while True:
            with suppress(ServerError):
                async with aclosing(self._client.stream("GET", path)) as events:
                    async for name, data in events:
                        if name == "stat":
                            self._stat = (time.monotonic(), json.loads(data))
                            self._has_news.set()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def first_speed(self) -> None:
        """Waits for an event `stat`, as long as a busy engine takes to make one."""
        try:
            await asyncio.wait_for(self._has_news.wait(), STAT_LIFETIME)
        except asyncio.TimeoutError:  # another class than TimeoutError on Python 3.10
            return

    async def read(self) -> ServerStatus:
        """The status now.

        Raises:
            ServerError: the server cannot be asked, or is none of ours.
        """
        try:
            requests = (await self._client.get("/v1/requests"))["data"]
        except ServerError as error:
            if error.status != 404:
                raise
            message = f"{self._client.url}: not a pellucid server: it has no /v1/requests"
            raise ServerError(error.reason, message, 404) from None
        models = (await self._client.get("/v1/models"))["data"]
        kv = await self._client.get("/v1/kv")
        stat = None
        if self._stat is not None and time.monotonic() - self._stat[0] < STAT_LIFETIME:
            stat = self._stat[1]
        return ServerStatus(
            self._client.url, models[0]["id"], await self._health(), requests, kv, stat
        )

    async def _health(self) -> str:
        try:
            reply = await self._client.get("/health")
        except ServerError as error:
            if error.status != 503:
                raise
            return str(error)
        return str(reply["status"])
