"""What a streamed token costs the server: processor time of the event loop's thread, beside the engine's.

    python benchmarks/server_cpu.py [--streams 50] [--tokens 200] [--step-ms 10] [--rounds 5] [--protocols chat]

The server streams answers of a model that takes no processor time and `--step-ms` for a step, so that every stream
gets one token in each step. The clients are one process that only reads. Measures the processor time of both threads
by the kernel's count, from the moment when all streams have begun to the end of the last one, with what the end of a
call costs; and that of a server that only writes as many bytes to as many connections. Each round measures all in
turn. Prints medians, and the slowest and the fastest round. Before the first round short streams warm the server up.
"""

import argparse
import asyncio
import json
import selectors
import socket
import statistics
import sys
import threading
import time
from asyncio.subprocess import Process
from typing import Any

import numpy as np
import uvloop

from pellucid.async_engine import AsyncLLMEngine
from pellucid.backends.base import StepLogits
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.server.app import make_app, make_serving
from pellucid.server.config import ServerConfig
from pellucid.server.run import DrainingServer, listen, make_uvicorn_config

PROMPT = "Tell me a story."
MESSAGES = [{"role": "user", "content": PROMPT}]
END_OF_REPLY = b"\r\n0\r\n\r\n"  # of a chunked body
FRAME = b"x" * 250
NUM_WARMING_TOKENS = 4


def body_of(protocol: str, num_tokens: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of a streamed call that gets so many tokens."""
    greedy = {"stream": True, "temperature": 0}
    openai = {"max_tokens": num_tokens, "ignore_eos": True, **greedy}
    options = {"num_predict": num_tokens, "temperature": 0}
    return {
        "chat": ("/v1/chat/completions", {"messages": MESSAGES, **openai}),
        "completions": ("/v1/completions", {"prompt": PROMPT, **openai}),
        "messages": (
            "/v1/messages",
            {"model": "m", "messages": MESSAGES, "max_tokens": num_tokens, **greedy},
        ),
        "responses": (
            "/v1/responses",
            {"input": PROMPT, "max_output_tokens": num_tokens, **greedy},
        ),
        "ollama": ("/api/chat", {"model": "m", "messages": MESSAGES, "options": options}),
    }[protocol]


class SlowModel:
    """A `CompiledDecoder` that has the same logits in every step, after some time without work."""

    draws_tokens = True

    def __init__(self, vocab_size: int, max_rows: int, token_id: int, seconds: float) -> None:
        self.vocab_size = vocab_size
        rows = np.zeros((max_rows, vocab_size), np.float32)
        rows[:, token_id] = 1.0
        self._logits = StepLogits(rows, [token_id] * max_rows)
        self._seconds = seconds

    def step(self, batch, kv_cache, draws=None):
        time.sleep(self._seconds)
        return self._logits


class Clients:
    """Reads streams to their ends in a process of its own. Says on stdout when all have begun, and ended."""

    def __init__(self, port: int, protocol: str, num_streams: int, num_tokens: int) -> None:
        path, body = body_of(protocol, num_tokens)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n\r\n"
        self._selector = selectors.DefaultSelector()
        self._num_open = self._num_silent = num_streams
        for _ in range(num_streams):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(head.encode() + data)
            self._selector.register(connection, selectors.EVENT_READ, bytearray())

    def read(self) -> None:
        while self._num_open:
            for key, _ in self._selector.select():
                self._take(key, key.fileobj.recv(1 << 16))

    def _take(self, key: selectors.SelectorKey, data: bytes) -> None:
        if b"HTTP/1.1 " in data and b"HTTP/1.1 200" not in data:
            raise RuntimeError(data.decode())
        tail: bytearray = key.data
        if not tail:
            self._num_silent -= 1
            if not self._num_silent:
                print("begun", flush=True)
        tail[:] = (tail + data)[-len(END_OF_REPLY) :]
        if tail == END_OF_REPLY:
            self._selector.unregister(key.fileobj)
            self._num_open -= 1


async def start_clients(
    port: int, protocol: str, args: argparse.Namespace, num_tokens: int
) -> Process:
    """Starts the clients of streams of so many tokens; returns when all streams have begun."""
    clients = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--client", f"{port}", "--protocols", protocol),
        *("--streams", f"{args.streams}", "--tokens", f"{num_tokens}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert clients.stdout is not None
    assert await clients.stdout.readline() == b"begun\n", "the clients failed"
    return clients


async def microseconds_of_writing(args: argparse.Namespace) -> float:
    """Processor time of a server that writes the same bytes to each connection in each step and does nothing else:
    no server on this event loop needs less."""
    transports: list[asyncio.WriteTransport] = []

    class Bare(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transports.append(transport)
            transport.write(b"begun")

    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clients = await start_clients(port, "chat", args, args.tokens)
    start = time.thread_time()
    for _ in range(args.tokens):
        await asyncio.sleep(args.step_ms / 1e3)
        for transport in transports:
            transport.write(FRAME)
    seconds = time.thread_time() - start
    for transport in transports:
        transport.write(END_OF_REPLY)
    assert await clients.wait() == 0, "the clients failed"
    server.close()
    return seconds / args.tokens / args.streams * 1e6


def engine_of(args: argparse.Namespace) -> AsyncLLMEngine:
    length = args.tokens + 64
    engine = LLMEngine.from_config(
        EngineConfig(
            speculation="off",
            max_num_seqs=args.streams,
            num_kv_blocks=args.streams * -(-length // 32),
        )
    )
    (token_id,) = engine.tokenizer.encode(" tree")[-1:]
    vocab_size = engine.model_config.vocab_size
    model = SlowModel(vocab_size, args.streams, token_id, args.step_ms / 1e3)
    engine.model_runner.decoder = model
    return AsyncLLMEngine(engine)


async def measure(args: argparse.Namespace) -> None:
    engine = engine_of(args)
    thread = next(each for each in threading.enumerate() if each.name == "pellucid-engine")
    engine_clock = time.pthread_getcpuclockid(thread.ident)
    config = ServerConfig(port=0, model_names=("m",))
    serving = make_serving(engine, config)
    protocols = args.protocols.split(",")
    loop_us: dict[str, list[float]] = {name: [] for name in ("bare", *protocols)}
    engine_us: dict[str, list[float]] = {name: [] for name in protocols}
    with listen(config) as listener:
        port = listener.getsockname()[1]
        server = DrainingServer(make_uvicorn_config(config, make_app(serving)), serving.service)
        serving_task = asyncio.create_task(server.serve(sockets=[listener]))
        for protocol in protocols:
            warming = await start_clients(port, protocol, args, NUM_WARMING_TOKENS)
            assert await warming.wait() == 0, "the clients failed"
        for _ in range(args.rounds):
            loop_us["bare"].append(await microseconds_of_writing(args))
            for protocol in protocols:
                clients = await start_clients(port, protocol, args, args.tokens)
                begun = sum(
                    len(output.outputs[0].token_ids)
                    for generation in serving.service.under_way.values()
                    for output in generation.outputs
                )
                loop_start, engine_start = time.thread_time(), time.clock_gettime(engine_clock)
                assert await clients.wait() == 0, "the clients failed"
                count = args.streams * args.tokens - begun
                loop_us[protocol].append((time.thread_time() - loop_start) / count * 1e6)
                engine_us[protocol].append(
                    (time.clock_gettime(engine_clock) - engine_start) / count * 1e6
                )
        server.end()
        await serving_task
    await engine.shutdown()
    print_table(loop_us, engine_us, args)


def print_table(
    loop_us: dict[str, list[float]], engine_us: dict[str, list[float]], args: argparse.Namespace
) -> None:
    print(
        f"{args.streams} streams of {args.tokens} tokens, a step every {args.step_ms:g} ms or later;"
        f" microseconds a token, medians of {args.rounds} rounds\n"
    )
    print("| server | event loop | from, to | times bare | engine's thread |")
    print("| --- | ---: | ---: | ---: | ---: |")
    bare = statistics.median(loop_us["bare"])
    for name, found in loop_us.items():
        median = statistics.median(found)
        engine = f"{statistics.median(engine_us[name]):.1f}" if name in engine_us else ""
        print(
            f"| {name} | {median:.1f} | {min(found):.1f}, {max(found):.1f} | {median / bare:.2f} | {engine} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--protocols", default="chat,completions,messages,responses,ollama")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client is not None:
        Clients(args.client, args.protocols, args.streams, args.tokens).read()
        return
    uvloop.run(measure(args))


if __name__ == "__main__":
    main()
