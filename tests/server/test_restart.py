"""`pellucid serve` as a process: killed and started again, drained, and what it listens on and logs."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from support.http_server import TIMEOUT, RunningServer, served_process
from support.wake_ups import idle_wake_ups

KEY, PROMPT = "a-very-secret-key-0123", "The quick secret fox jumps over the lazy dog. " * 30
LISTENING = "0A"  # in /proc/net/tcp


@dataclass
class Served:
    """A server process and calls to it."""

    process: "subprocess.Popen[str]"
    server: RunningServer

    def complete(self, **fields: object) -> dict[str, object]:
        body = {"prompt": PROMPT, "max_tokens": 20, "seed": 3, "logprobs": 1, **fields}
        reply = self.server.post("/v1/completions", body, authorization=f"Bearer {KEY}")
        assert reply.status == 200, reply.body
        return reply.json

    def open_stream(self, num_tokens: int) -> socket.socket:
        body = {"prompt": PROMPT, "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
        return self.server.open_call("/v1/completions", body, authorization=f"Bearer {KEY}")

    def listening_addresses(self) -> set[str]:
        """Of all TCP sockets of the process that accept connections."""
        inodes = set()
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            # The process may close a file between the listing and the reading.
            with suppress(FileNotFoundError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        found = set()
        for name in ("tcp", "tcp6"):
            path = Path(f"/proc/{self.process.pid}/net/{name}")
            for line in path.read_text().splitlines()[1:] if path.exists() else ():
                _, local, _, state, *_ = words = line.split()
                if state == LISTENING and words[9] in inodes:
                    found.add(local)
        return found


@contextmanager
def served(directory: Path) -> Iterator[Served]:
    (keys := directory / "keys").write_text(f"inference me {KEY}\n")
    words = ["--api-keys", str(keys), "--log-calls", "--block-size", "16"]
    with served_process(*words, "--prefix-store", str(directory / "cache")) as (process, server):
        try:
            yield Served(process, server)
        finally:
            process.kill()
            assert process.stderr is not None
            with (directory / "log").open("a") as log:
                log.write(process.stderr.read())


def test_an_idle_server_does_not_wake_up(tmp_path: Path) -> None:
    """None of its threads. It ends at a signal all the same, and its replies have the date."""
    with served(tmp_path) as idle:
        idle.complete()
        threads = [int(path.name) for path in Path(f"/proc/{idle.process.pid}/task").iterdir()]
        assert idle_wake_ups(threads) == 0
        date = parsedate_to_datetime(idle.server.get("/health").headers["date"])
        assert abs(date.timestamp() - time.time()) < 2
        idle.process.send_signal(signal.SIGTERM)
        assert idle.process.wait(TIMEOUT) == 0


def test_a_killed_server_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 amid a stream: the blocks on disk serve the next process, bit for bit. The process listens on one
    address (vLLM CVE-2025-30202, llama.cpp CVE-2024-42478: internal sockets)."""
    with served(tmp_path) as first:
        answer = first.complete()
        assert first.listening_addresses() == {f"0100007F:{first.server.port:04X}"}
        first.server.wait_until(
            lambda: len([*(tmp_path / "cache").rglob("*.kv")]) >= 10, "blocks on disk"
        )
        with first.open_stream(2000) as stream:
            assert stream.recv(100)
            first.process.send_signal(signal.SIGKILL)
            assert first.process.wait(TIMEOUT) == -signal.SIGKILL
    with served(tmp_path) as second:
        again = second.complete()
        assert again["choices"] == answer["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 160

        # SIGTERM: the stream ends by itself, and then the process.
        with second.open_stream(300) as stream:
            received = stream.recv(100)
            second.process.send_signal(signal.SIGTERM)
            while data := stream.recv(65536):
                received += data
        assert b"[DONE]" in received
        assert second.process.wait(TIMEOUT) == 0
    log = (tmp_path / "log").read_text()
    assert '"path": "/v1/completions"' in log and '"caller": "me"' in log
    assert "secret" not in log
