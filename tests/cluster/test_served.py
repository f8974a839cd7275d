"""`pellucid serve --replicas`: every protocol replies as with one engine, also while replicas are killed."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.bundled import bundled_engine
from support.http_server import running_server
from support.replicas import is_running
from support.replies import without

START_SECONDS = 180.0
CHAT = [{"role": "user", "content": "Tell me of Mira and the key."}]
SAMPLED = {"temperature": 0.8, "seed": 11}
# Path and body of calls that say everything in their replies.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20, "logprobs": 3, **SAMPLED}),
    (
        "/v1/completions",
        {
            "prompt": ["Once", [5, 6, 7]],
            "max_tokens": 9,
            "n": 2,
            "echo": True,
            "return_token_ids": True,
            **SAMPLED,
        },
    ),
    ("/v1/completions", {"prompt": "Once", "n": 1, "best_of": 3, "max_tokens": 9, **SAMPLED}),
    ("/v1/completions", {"prompt": "Once upon", "max_tokens": 25, "stream": True, "stop": "the", **SAMPLED}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 20, "logprobs": True, "top_logprobs": 2, **SAMPLED}),
    (
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "max_tokens": 25,
            "stream": True,
            "stream_options": {"include_usage": True},
            **SAMPLED,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "max_tokens": 40,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {
                        "type": "object",
                        "properties": {"n": {"enum": [1, 2, 3]}},
                        "required": ["n"],
                    },
                },
            },
            **SAMPLED,
        },
    ),
    ("/v1/responses", {"input": "Tell me of Mira.", "max_output_tokens": 20, "temperature": 0}),
    ("/v1/messages", {"model": "tested", "messages": CHAT, "max_tokens": 20, "temperature": 0}),
    (
        "/api/chat",
        {
            "model": "tested",
            "messages": CHAT,
            "stream": False,
            "options": {"num_predict": 20, "temperature": 0},
        },
    ),
    ("/tokenize", {"prompt": "Once upon a time"}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 9, "temperature": -1}),
    ("/v1/completions", {"prompt": [999_999], "max_tokens": 9}),
    ("/v1/completions", {"prompt": "a " * 3000, "max_tokens": 9}),
]  # fmt: skip


class Served:
    """A server in a process of its own."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pellucid", "serve", "--port", "0", *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if (found := re.search(r"http://(127\.0\.0\.1):(\d+)", line)) is not None:
                self.address = found[1], int(found[2])
                break
        else:
            raise AssertionError("".join(self.lines))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        with closing(
            http.client.HTTPConnection(*self.address, timeout=START_SECONDS)
        ) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, reply.read()

    def metrics(self) -> dict[str, float]:
        text = self.call("GET", "/metrics")[1].decode()
        pairs = re.findall(
            r"^(pellucid:\w+)\{[^}]*?(?:replica=\"(\d)\")?\} (\S+)$", text, re.MULTILINE
        )
        return {name + replica: float(value) for name, replica, value in pairs}

    def replica_pids(self) -> list[int]:
        """In the order of their numbers."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        return sorted(
            int(child)
            for child in children
            if b"pellucid.cluster.replica" in Path(f"/proc/{child}/cmdline").read_bytes()
        )

    def until(self, name: str, value: float) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.metrics().get(name) != value:
            assert time.monotonic() < deadline, (name, self.metrics(), self.lines)
            time.sleep(0.2)


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    served = Served(*options)
    try:
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0, served.lines
    finally:
        served.process.kill()
        served.process.wait()
        assert served.process.stderr is not None
        served.process.stderr.close()


# What depends on times, on chance, or on what another call has left in the cache of the same engine.
UNLIKE = ("id", "created", "created_at", "completed_at", "timings", "cached_tokens", "request_id")
UNLIKE_ENDS = (
    "_duration",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "input_tokens",
)


def alike(value: Any) -> Any:
    """A value of JSON without what differs between calls."""
    return without(value, lambda name: name in UNLIKE or name.endswith(UNLIKE_ENDS))


def said(status: int, body: bytes) -> tuple[int, Any]:
    """What a reply says. Of a stream what it says in all: a frame may have several tokens."""
    lines = [line for line in body.decode().splitlines() if line.startswith("data: {")]
    if not lines:
        return status, alike(json.loads(body))
    frames = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [choice for frame in frames for choice in frame["choices"]]
    spoken = "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices
    )
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return status, (spoken, ends, alike(frames[-1].get("usage")))


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")
def test_every_protocol_replies_as_with_one_engine() -> None:
    with running_server(bundled_engine()) as one:
        expected = [said((reply := one.call("POST", *call)).status, reply.body) for call in CALLS]
    with serving("--replicas", "2", "--model-name", "tested") as served:
        for call, one_reply in zip(CALLS, expected, strict=True):
            assert said(*served.call("POST", *call)) == one_reply, call
        pids = served.replica_pids()
        assert len(pids) == 2
        # In the middle of a stream its replica ends
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True, **SAMPLED}
        whole = said(*served.call("POST", "/v1/completions", body))
        with closing(http.client.HTTPConnection(*served.address, timeout=START_SECONDS)) as stream:
            stream.request("POST", "/v1/completions", json.dumps(body))
            reply = stream.getresponse()
            beginning = reply.readline()
            busy = next(
                number for number in "01" if served.metrics()[f"pellucid:replica_requests{number}"]
            )
            os.kill(pids[int(busy)], signal.SIGKILL)
            assert said(reply.status, beginning + reply.read()) == whole
        assert served.metrics()["pellucid:failovers_total"] == 1
        served.until(f"pellucid:replica_ready{busy}", 1)
        assert served.call("GET", "/health") == (200, b'{"status":"ok"}')
        for call, one_reply in zip(CALLS, expected, strict=True):
            assert said(*served.call("POST", *call)) == one_reply, call


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")
def test_what_looks_into_one_engine_is_refused_and_all_processes_end() -> None:
    with serving("--replicas", "2", "--port", "0") as served:
        for method, path in (
            ("GET", "/page"),
            ("GET", "/v1/estimate"),
            ("GET", "/v1/kv/tree"),
            ("GET", "/v1/logits/x/1"),
            ("POST", "/v1/compare"),
            ("POST", "/v1/page/fork"),
        ):
            status, body = served.call(method, path, {} if method == "POST" else None)
            assert (status, json.loads(body)["error"]["code"]) == (501, "needs_one_engine"), path
        status, body = served.call("GET", "/v1/events?level=step")
        assert status == 400 and b"level=stat" in body
        assert json.loads(served.call("GET", "/v1/kv")[1])["num_used_blocks"] == 0
        snapshot = json.loads(served.call("GET", "/v1/snapshot")[1])
        assert snapshot["requests"] == [] and snapshot["free"] > 0
        pids = served.replica_pids()
        reply: list[tuple[int, bytes]] = []
        body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True}
        caller = threading.Thread(
            target=lambda: reply.append(served.call("POST", "/v1/completions", body))
        )
        caller.start()
        while not json.loads(served.call("GET", "/v1/requests")[1])["data"]:
            time.sleep(0.01)
        served.process.send_signal(signal.SIGTERM)  # drains
        caller.join()
        assert reply[0][0] == 200 and json.loads(reply[0][1])["usage"]["completion_tokens"] == 500
        served.process.wait(60)
        assert not any(map(is_running, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")
def test_replicas_end_with_a_front_that_is_killed() -> None:
    served = Served("--replicas", "2")
    pids = served.replica_pids()
    served.process.kill()
    served.process.wait()
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert served.process.stderr is not None
    served._reader.join()
    served.process.stderr.close()
