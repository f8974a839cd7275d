"""A server on a real socket, in a thread of the test process, and plain HTTP calls to it."""

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pellucid.async_engine import AsyncLLMEngine
from pellucid.engine import LLMEngine
from pellucid.outputs import CompletionDelta
from pellucid.server.app import make_app, make_serving
from pellucid.server.body_memory import BodyMemory
from pellucid.server.config import ServerConfig
from pellucid.server.generation import GenerationService
from pellucid.server.run import DrainingServer, listen, make_uvicorn_config

TIMEOUT = 60.0  # seconds: a limit against hangs


@dataclass
class HttpReply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events, [DONE] as text."""
        frames = [frame for frame in self.body.decode().split("\n\n") if frame]
        data = [
            line.removeprefix("data: ")
            for frame in frames
            for line in frame.split("\n")
            if line.startswith("data: ")
        ]
        return [text if text == "[DONE]" else json.loads(text) for text in data]


@dataclass
class RunningServer:
    host: str
    port: int
    engine: LLMEngine
    service: GenerationService
    bodies: BodyMemory
    uvicorn_server: DrainingServer
    listener: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """One call on a connection of its own; `body` is sent as JSON unless it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(
            http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        ) as connection:
            connection.request(method, path, data, dict(headers or {}))
            with connection.getresponse() as reply:
                found = {name.lower(): value for name, value in reply.getheaders()}
                return HttpReply(reply.status, found, reply.read())

    def post(self, path: str, body: Any, **headers: str) -> HttpReply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("POST", path, body, named)

    def get(self, path: str, **headers: str) -> HttpReply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("GET", path, None, named)

    def open_call(self, path: str, body: Any, buffer: int = 0, **headers: str) -> socket.socket:
        """Sends a call; the connection is unread, and the caller closes it.

        Args:
            buffer: bytes that the system keeps of the reply on either side; 0: as it likes.
        """
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n"
            f"content-length: {len(data)}\r\n"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        connection = socket.socket()
        connection.settimeout(TIMEOUT)
        try:
            if buffer:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
                self.listener.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, buffer
                )  # its connections have it, too
            connection.connect((self.host, self.port))
            connection.sendall(head.encode() + data)
        except BaseException:
            connection.close()
            raise
        return connection

    def wait_until(self, condition: "Any", what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"never came: {what}"
            time.sleep(0.005)

    def wait_until_idle(self) -> None:
        """Nothing is under way, and every block is free again."""
        admission = self.service.admission
        self.wait_until(lambda: not self.service.under_way, "no request under way")
        self.wait_until(
            lambda: admission.completions.used == admission.tokens.used == 0, "free places"
        )
        self.wait_until(lambda: not self.engine.has_unfinished_requests, "an idle engine")
        # On the engine's own thread: within a step, a request has left before its blocks are free.
        self.service.engine._thread.call(lambda: _check_idle(self.engine)).result(TIMEOUT)

    def send_each_step(self) -> None:
        """From now on the engine waits before each step until the frames of the last one are sent, so streams have the
        same frames in each run."""
        take_step, streams = self.engine.step, self.service.engine._thread._streams

        def step() -> list[CompletionDelta]:
            loop = next(iter(streams.values())).loop
            asyncio.run_coroutine_threadsafe(_turns(20), loop).result(TIMEOUT)
            return take_step()

        self.engine.step = step  # type: ignore[method-assign]


@contextmanager
def served_process(*options: str) -> Iterator[tuple["subprocess.Popen[str]", RunningServer]]:
    """`pellucid serve` in a process of its own, whose stderr can be read on, and calls to it."""
    command = [sys.executable, "-m", "pellucid", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if line.startswith("serving "))
            host, port = line.split("http://")[1].strip().split(":")
            yield process, RunningServer(host, int(port), None, None, None, None)  # type: ignore[arg-type]
        finally:
            process.kill()


async def _turns(count: int) -> None:
    """Lets an event loop run everything that is ready, and what that makes ready, and so on."""
    for _ in range(count):
        await asyncio.sleep(0)


def _check_idle(engine: LLMEngine) -> None:
    manager = engine.scheduler.kv_cache_manager
    assert manager.block_pool.num_free_blocks == manager.block_pool.num_blocks
    manager.check_integrity()


@contextmanager
def running_server(engine: LLMEngine, **knobs: Any) -> Iterator[RunningServer]:
    """Serves an engine until the block ends.

    Args:
        engine: for this server alone.
        knobs: fields of `ServerConfig`.
    """
    config = ServerConfig(**{"port": 0, "model_names": ("tested", "alias-*"), **knobs})
    async_engine = AsyncLLMEngine(engine, config.limits.max_unfinished_completions)
    serving = make_serving(async_engine, config)
    with listen(config) as listener:
        uvicorn_config = make_uvicorn_config(config, make_app(serving))
        uvicorn_config.timeout_keep_alive = int(TIMEOUT)  # a slow machine ends no idle connection
        server = DrainingServer(uvicorn_config, serving.service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        host, port = listener.getsockname()[:2]
        running = RunningServer(
            host, port, engine, serving.service, serving.bodies, server, listener
        )
        running.wait_until(lambda: server.started, "the server's start")
        try:
            yield running
        finally:
            server.end()
            thread.join(TIMEOUT)
            assert not thread.is_alive()
            asyncio.run(async_engine.shutdown())
