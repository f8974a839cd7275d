"""Many clients at a time: streams with disconnects, idle streams, and more calls than there are places.

The tests are small; the options `--clients`, `--load-seconds`, `--idle-streams` and `--queued-calls` make them large:

    pytest tests/server/test_many_clients.py --clients 200 --load-seconds 60 --idle-streams 1000 --queued-calls 5000
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pellucid.server.config import Limits
from support.bundled import bundled_engine
from support.fake_model import fake_engine
from support.http_server import RunningServer, running_server
from support.memory_use import OwnMemory
from support.step_gate import StepGate

NUM_BODIES = 8
DISCONNECTING = 1 / 3  # of the requests of the clients
MAX_GROWTH = 64 << 20  # bytes of memory, once the server is warm


def body(number: int) -> dict[str, object]:
    return {
        "prompt": [number + 1, 2, 3] * 10,
        "max_tokens": 20 + 10 * number,
        "seed": number,
        "temperature": 0.9,
        "ignore_eos": True,
    }


class Client:
    """Plain asyncio calls: hundreds of official clients in one process would be what is measured."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    @asynccontextmanager
    async def open(
        self, path: str, fields: dict[str, object]
    ) -> AsyncIterator[asyncio.StreamReader]:
        """Sends a call; the connection is closed when the block ends."""
        reader, writer = await asyncio.open_connection(self._server.host, self._server.port)
        try:
            data = json.dumps(fields).encode()
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            yield reader
        finally:
            writer.close()
            with suppress(OSError):  # the server may have closed it first
                await writer.wait_closed()

    async def whole(self, path: str, fields: dict[str, object]) -> bytes:
        """The reply, with its head."""
        async with self.open(path, fields) as reader:
            return await reader.read()


def text_of(reply: bytes) -> str:
    """Of a streamed completion; fails if the stream does not end as it should."""
    assert reply.startswith(b"HTTP/1.1 200"), reply[:500]
    lines = [line for line in reply.split(b"\r\n") if line.startswith(b"data: ")]
    frames = b"".join(lines).split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""], frames[-3:]
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_clients_that_stream_and_disconnect_harm_nobody(request: pytest.FixtureRequest) -> None:
    """A third of the streams is left at any moment: the others get what they get alone, and nothing is left behind."""
    num_clients = request.config.getoption("clients")
    seconds = request.config.getoption("load_seconds")
    counts: Counter[str] = Counter()
    with running_server(bundled_engine()) as server:
        expected = [
            server.post("/v1/completions", body(number)).json["choices"][0]["text"]
            for number in range(NUM_BODIES)
        ]
        begin = time.monotonic()
        sizes: list[int] = []

        async def one_client(seed: int) -> None:
            rng, client, num_requests = random.Random(seed), Client(server), 0
            while num_requests < 2 or time.monotonic() < begin + seconds:
                number = rng.randrange(NUM_BODIES)
                fields = {**body(number), "stream": True}
                if rng.random() < DISCONNECTING:
                    async with client.open("/v1/completions", fields) as reader:
                        await reader.readexactly(rng.randrange(1, 2000))
                    counts["left"] += 1
                else:
                    reply = await client.whole("/v1/completions", fields)
                    assert text_of(reply) == expected[number]
                    counts["whole"] += 1
                num_requests += 1

        async def watch_memory() -> None:
            while True:
                await asyncio.sleep(seconds / 4)
                sizes.append(OwnMemory().now())  # of server, engine and clients

        async def all_clients() -> None:
            watching = asyncio.create_task(watch_memory()) if seconds else None
            await asyncio.gather(*map(one_client, range(num_clients)))
            if watching is not None:
                watching.cancel()

        asyncio.run(all_clients())
        server.wait_until_idle()
        num_tokens = server.service.metrics.counters["vllm:generation_tokens"]
    assert counts["whole"] >= num_clients / 2 and counts["left"]
    if sizes:
        per_second = num_tokens / (time.monotonic() - begin)
        print(f"\n{counts}, {per_second:.0f} tokens/s, memory in MB {[s >> 20 for s in sizes]}")
        assert max(sizes) - sizes[0] < MAX_GROWTH


def test_idle_streams_are_held_with_signs_of_life(request: pytest.FixtureRequest) -> None:
    num_streams = request.config.getoption("idle_streams")
    limits = Limits(max_unfinished_completions=num_streams)
    engine = fake_engine(num_kv_blocks=8192, max_num_seqs=256)
    with running_server(engine, limits=limits, keepalive_seconds=0.2) as server:
        gate = StepGate(engine)
        num_alive = 0

        async def one_stream(all_alive: asyncio.Event) -> bytes:
            nonlocal num_alive
            fields = {"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True, "stream": True}
            async with Client(server).open("/v1/completions", fields) as reader:
                head = b""
                for _ in range(2):
                    head += await reader.readuntil(b": keepalive\n\n")
                num_alive += 1
                if num_alive == num_streams:
                    gate.open()
                    all_alive.set()
                await all_alive.wait()
                return head + await reader.read()

        async def all_streams() -> list[bytes]:
            all_alive = asyncio.Event()
            return await asyncio.gather(*(one_stream(all_alive) for _ in range(num_streams)))

        replies = asyncio.run(all_streams())
        assert all(len(text_of(reply)) == 5 for reply in replies)  # a character a token
        assert all(reply.count(b'"finish_reason":"length"') == 1 for reply in replies)
        server.wait_until_idle()


def test_calls_beyond_the_places_are_refused_early_and_the_others_served_in_time(
    request: pytest.FixtureRequest,
) -> None:
    """vLLM #18826. Each further call has its 429, with `Retry-After` and the numbers, before a single step is taken."""
    num_calls = request.config.getoption("queued_calls")
    num_places, num_seats, num_tokens = 16, 4, 5
    engine = fake_engine(max_num_seqs=num_seats)
    limits = Limits(max_unfinished_completions=num_places)
    fields = {"prompt": [1, 2, 3], "max_tokens": num_tokens, "ignore_eos": True}
    with running_server(engine, limits=limits) as server:
        client, gate = Client(server), StepGate(engine)

        async def further_call(slots: asyncio.Semaphore) -> None:
            async with slots:
                reply = await client.whole("/v1/completions", fields)
            assert reply.startswith(b"HTTP/1.1 429") and b"retry-after: " in reply
            assert b"16 of 16 completions are unfinished; this call needs 1; try again in" in reply

        async def all_calls() -> list[bytes]:
            calls = [client.whole("/v1/completions", fields) for _ in range(num_places)]
            admitted = [asyncio.create_task(call) for call in calls]
            while len(engine.unfinished_request_ids) < num_places:
                await asyncio.sleep(0.005)
            slots = asyncio.Semaphore(500)  # connections at a time
            await asyncio.gather(*(further_call(slots) for _ in range(num_calls)))
            assert engine.events.step == 0
            gate.open()
            return await asyncio.gather(*admitted)

        replies = asyncio.run(all_calls())
        assert all(reply.startswith(b"HTTP/1.1 200") for reply in replies)
        assert server.service.admission.num_refused == num_calls
        # Bounded: what was admitted needs as many steps as it would without any other call.
        assert engine.events.step <= num_places / num_seats * (num_tokens + 1)
        server.wait_until_idle()
