"""Debian's redis-server, on a free port and without files; a connection in between that is slow."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
import redis

from pellucid.execution.redis_values import RedisValues

TIMEOUT = 60.0  # seconds: a limit against hangs


@dataclass
class RedisServer:
    """A server that tests may end and start again."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        words += ["--appendonly", "no", "--maxmemory", "200mb", "--maxmemory-policy", "allkeys-lru"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + TIMEOUT
        with redis.Redis(port=self.port) as client:
            while not _answers(client):
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(TIMEOUT)
            self.process = None

    def values(self, num_bytes: int) -> RedisValues:
        return RedisValues(self.url)

    def names(self) -> list[str]:
        with redis.Redis(port=self.port) as client:
            return [name.decode() for name in client.scan_iter()]

    def clear(self) -> None:
        with redis.Redis(port=self.port) as client:
            client.flushall()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _answers(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    server = RedisServer(free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def slow_connection(port: int, goes_on: threading.Event) -> Iterator[int]:
    """A port that passes everything on to another one, but no answer before `goes_on` is set."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets = [listener]

    def pump(source: socket.socket, target: socket.socket, waits: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if waits:
                    goes_on.wait(TIMEOUT)
                target.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                sockets.extend((client, server))
                threading.Thread(target=pump, args=(client, server, False), daemon=True).start()
                threading.Thread(target=pump, args=(server, client, True), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        goes_on.set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        thread.join(TIMEOUT)
