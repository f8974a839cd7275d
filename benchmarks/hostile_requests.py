"""What one client's requests cost the others: how long they stop the server, and the memory that they add.

    python benchmarks/hostile_requests.py [--mib 15.9 3 1] [--routes /tokenize ...] [--kinds deep ...]
        [--connections 4096] [--waiting 1000]

Starts the server with the bundled model, and sends bodies of so many MiB to every route that takes one: many keys,
deep nesting, one long text, many items, wide characters, many numbers. Meanwhile another connection polls /health.
Prints for each body the status and the time of the reply, the longest wait of a poll, and the memory that was added at
the peak. Smaller sizes reach bodies whose number of values is just within the bounds.
Of a wait the time is left out in which the kernel let other processes run (`schedstat`), as on a busy machine it is
most of it.

Then opens connections that are idle, that trickle, and that never read, all from one address, and polls /health and
asks for answers from another address; and lets requests wait, and lists them.
"""

import argparse
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MESSAGE = {"role": "user", "content": "Hi"}
ROUTES: dict[str, dict[str, Any]] = {  # each with a small body that it serves
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [MESSAGE], "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": [MESSAGE], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [MESSAGE]},
    "/api/chat": {"messages": [MESSAGE], "options": {"num_predict": 1}, "stream": False},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 1}, "stream": False},
    "/api/show": {"model": "pellucid-5m"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": [MESSAGE]},
    "/v1/compare": {"prompt": "Hi", "max_tokens": 1},
    "/v1/load": {"num_requests": 1},
}
MIB = 1 << 20
TIMEOUT = 300.0
STOP_LIMIT, MEMORY_LIMIT = 0.1, 200 * MIB


def repeated(part: bytes, size: int) -> bytes:
    """Elements of a list, separated by commas."""
    return b",".join([part] * max(1, size // (len(part) + 1)))


def many_keys(size: int) -> bytes:
    """Of an object."""
    return b",".join(b'"k%d":1' % number for number in range(size // 12))


@dataclass(frozen=True)
class Kind:
    """A kind of body.

    Attributes:
        value: makes the JSON of a value of about so many bytes.
        fields: of a body, that get it; those that it has not are added.
    """

    value: Callable[[int], bytes]
    fields: tuple[str, ...] = ()


def text_of(part: bytes) -> Callable[[int], bytes]:
    return lambda size: b'"' + part * (size // len(part)) + b'"'


def list_of(part: bytes) -> Callable[[int], bytes]:
    return lambda size: b"[" + repeated(part, size) + b"]"


TEXTS = ("prompt", "input", "content")
MESSAGES = ("messages",)
KINDS = {
    "long text": Kind(text_of(b"The cat sat. "), TEXTS),
    "one letter": Kind(text_of(b"a"), TEXTS),
    "wide text": Kind(text_of("\U0001f98a".encode()), TEXTS),
    "escaped text": Kind(text_of(b"\\u00e9"), TEXTS),
    "long message": Kind(lambda size: b'[{"role":"user","content":%b}]' % text_of(b"ab ")(size), MESSAGES),
    "many messages": Kind(list_of(b'{"role":"user","content":"a"}'), (*MESSAGES, "input")),
    "many parts": Kind(
        lambda size: b'[{"role":"user","content":%b}]' % list_of(b'{"type":"text","text":"a"}')(size),
        (*MESSAGES, "input"),
    ),
    "many keys": Kind(lambda size: b'[{"role":"user","content":"a",%b}]' % many_keys(size), (*MESSAGES, "input")),
    "many fields": Kind(lambda size: b'{%b}' % many_keys(size), ("metadata", "options", "logit_bias")),
    "unknown fields": Kind(lambda size: b'1,%b' % many_keys(size), ("unknown",)),
    "deep": Kind(lambda size: b"[" * (size // 2) + b"]" * (size // 2), (*TEXTS, "tools", "unknown")),
    "deep but allowed": Kind(lambda size: b'{"a":' * 900 + b"1" + b"}" * 900, ("tools", "response_format", "metadata")),
    "many numbers": Kind(list_of(b"1"), ("tokens", "prompt", "stop")),
    "many tools": Kind(
        list_of(b'{"type":"function","function":{"name":"f","parameters":{}}}'), ("tools",)
    ),
    "a large schema": Kind(
        lambda size: b'{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{%b}}}}'
        % many_keys(size).replace(b":1", b":{}"),
        ("response_format", "format"),
    ),
    "many stops": Kind(list_of(b'"a"'), ("stop", "stop_sequences", "include")),
}  # fmt: skip


def bodies(route: str, kind: Kind, size: int) -> Iterator[tuple[str, bytes]]:
    """The small body of a route with a field of a kind: those that it has, and those that any body may have."""
    base = ROUTES[route]
    own = [name for name in kind.fields if name in base] or kind.fields[-1:]
    for name in own:
        others = {key: value for key, value in base.items() if key != name}
        data = json.dumps(others).encode()[:-1]
        yield (
            name,
            data + (b"," if others else b"") + b'"%b":' % name.encode() + kind.value(size) + b"}",
        )


@dataclass
class Server:
    """The server's process."""

    process: subprocess.Popen[str]
    address: tuple[str, int]

    def connect(self, own_address: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(self.address, TIMEOUT, (own_address, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def memory(self, field_name: str) -> int:
        """VmRSS or VmHWM, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{field_name}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def seconds_without_processor(self) -> float:
        """How long the thread of the server's event loop has been ready to run and was not let."""
        return float(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def running_server() -> Iterator[Server]:
    words = [sys.executable, "-m", "pellucid", "serve", "--port", "0", "--num-threads", "1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "http://" in line)
        found = re.search(r"http://([\d.]+):(\d+)", line)
        assert found is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Server(process, (found[1], int(found[2])))
    finally:
        process.kill()
        process.wait()


def reply_of(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of a whole reply."""
    received = b""
    while b"\r\n\r\n" not in received:
        if not (data := connection.recv(65536)):
            return 0, b""
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length is not None and len(body) < int(length[1]):
        body += connection.recv(1 << 20)
    return int(head.split()[1]), body


def request(
    server: Server, method: str, path: str, body: bytes = b"", own: str = "127.0.0.1"
) -> tuple[int, bytes]:
    with server.connect(own) as connection:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        with suppress(ConnectionError):  # the server may answer before it has read all
            connection.sendall(head.encode() + body)
        try:
            return reply_of(connection)
        except ConnectionError:
            return 0, b""


@dataclass
class Poller:
    """Polls /health on one connection until it is stopped.

    Attributes:
        waits: seconds of each poll, without those in which other processes ran.
        unhealthy: replies other than 200.
    """

    server: Server
    own_address: str = "127.0.0.2"
    waits: list[float] = field(default_factory=list)
    unhealthy: int = 0

    @classmethod
    @contextmanager
    def polling(cls, server: Server) -> Iterator["Poller"]:
        poller, stop = cls(server), threading.Event()
        thread = threading.Thread(target=poller._run, args=(stop,))
        thread.start()
        try:
            yield poller
        finally:
            stop.set()
            thread.join()

    def _run(self, stop: threading.Event) -> None:
        connection = self.server.connect(self.own_address)
        own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        while not stop.wait(0.005):
            delays = (
                self.server.seconds_without_processor() + float(own.read_text().split()[1]) / 1e9
            )
            started = time.monotonic()
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            status, _ = reply_of(connection)
            wait = time.monotonic() - started
            later = (
                self.server.seconds_without_processor() + float(own.read_text().split()[1]) / 1e9
            )
            self.waits.append(max(0.0, wait - (later - delays)))
            self.unhealthy += status != 200
        connection.close()


def try_bodies(server: Server, routes: list[str], kinds: list[str], size: int) -> int:
    """Returns how many bodies stopped the server for too long, or took too much memory."""
    num_bad = 0
    print(f"{'route':28}{'kind':18}{'field':17}{'status':>6}{'s':>7}{'stop ms':>9}{'MB':>6}")
    for route in routes:
        for kind in kinds:
            for name, body in bodies(route, KINDS[kind], size):
                before = server.memory("VmRSS")
                server.reset_peak()
                with Poller.polling(server) as poller:
                    time.sleep(0.05)
                    started = time.monotonic()
                    status, _ = request(server, "POST", route, body)
                    seconds = time.monotonic() - started
                    time.sleep(0.05)
                added = server.memory("VmHWM") - before
                stop = max(poller.waits)
                is_bad = (
                    stop > STOP_LIMIT or added > MEMORY_LIMIT or poller.unhealthy or status >= 500
                )
                num_bad += bool(is_bad)
                print(
                    f"{route:28}{kind:18}{name:17}{status:6}{seconds:7.2f}{stop * 1e3:9.0f}"
                    f"{added / 1e6:6.0f}{'  !' if is_bad else ''}",
                    flush=True,
                )
    return num_bad


def try_connections(server: Server, number: int) -> None:
    """Connections that send nothing, a line end, half a head, half a body, and calls whose replies nobody
    reads, in equal parts; and some streams that nobody reads."""
    stream = json.dumps(
        {
            "prompt": "a",
            "n": 4,
            "max_tokens": 200,
            "logprobs": 20,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    first_bytes = (
        b"",
        b"\r\n",
        b"GET / HTTP/1.1\r\nx-slow: ",
        head % 1000 + b"{",
        b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20,
    )
    held: list[socket.socket] = []
    for index in range(number):
        with suppress(OSError):
            connection = server.connect()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            data = first_bytes[index % len(first_bytes)]
            connection.sendall(head % len(stream) + stream if index % 1000 == 999 else data)
            held.append(connection)
    time.sleep(10)  # the replies that nobody reads are written first
    good = json.dumps({"prompt": "Once", "max_tokens": 8}).encode()
    statuses: list[int] = []
    times: list[float] = []
    with Poller.polling(server) as poller:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for index, connection in enumerate(held):
                if index % len(first_bytes) in (1, 2, 3) and index % 50 == 0:
                    with suppress(OSError):
                        connection.sendall(b"\n" if index % len(first_bytes) == 1 else b"a")
            started = time.monotonic()
            statuses.append(request(server, "POST", "/v1/completions", good, "127.0.0.2")[0])
            times.append(time.monotonic() - started)
    num_files = sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())
    print(
        f"\n{number} connections of one address, of which the server has closed all but some {num_files}: another"
        f" address had {statuses.count(200)} of {len(statuses)} answers, a median of"
        f" {statistics.median(times):.2f} s each; /health failed {poller.unhealthy} of {len(poller.waits)} times"
    )
    for connection in held:
        connection.close()


def try_waiting(server: Server, number: int) -> None:
    """Lists requests that wait, each of which asks for its progress."""
    body = {
        "prompt": "a",
        "max_tokens": 1900,
        "stream": True,
        "ignore_eos": True,
        "return_progress": True,
    }
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    held = []
    for index in range(number):
        connection = server.connect(f"127.0.0.{3 + index % 4}")
        connection.sendall(head % len(data) + data)
        held.append(connection)
    time.sleep(1)
    times, num_listed = [], 0
    for _ in range(20):
        processor = server.seconds_without_processor()
        started = time.monotonic()
        _, reply = request(server, "GET", "/v1/requests")
        times.append(time.monotonic() - started - (server.seconds_without_processor() - processor))
        num_listed = len(json.loads(reply)["data"])
    with Poller.polling(server) as poller:
        time.sleep(3)
    print(
        f"\n{num_listed} requests under way: /v1/requests took {statistics.median(times) * 1e3:.0f} ms (median of 20;"
        f" {min(times) * 1e3:.0f} to {max(times) * 1e3:.0f}); while all are told their progress, /health waited"
        f" {max(poller.waits) * 1e3:.0f} ms at most"
    )
    for connection in held:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--mib", nargs="*", type=float, default=[15.9, 3.0, 1.0], help="of each body"
    )
    parser.add_argument("--routes", nargs="*", choices=ROUTES, default=list(ROUTES))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--connections", type=int, default=4096)
    parser.add_argument("--waiting", type=int, default=1000)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with running_server() as server:
        request(
            server,
            "POST",
            "/v1/chat/completions",
            json.dumps(ROUTES["/v1/chat/completions"]).encode(),
        )
        num_bad = 0
        for mib in options.mib:
            print(f"\nbodies of {mib:g} MiB")
            num_bad += try_bodies(server, options.routes, options.kinds, int(mib * MIB))
        print(f"{num_bad} bodies beyond {STOP_LIMIT * 1e3:.0f} ms or {MEMORY_LIMIT // MIB} MiB")
        if options.waiting:
            try_waiting(server, options.waiting)
    if options.connections:
        with running_server() as server:
            try_connections(server, options.connections)


if __name__ == "__main__":
    main()
