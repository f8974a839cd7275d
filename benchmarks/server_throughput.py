"""What serving costs in throughput: the same requests by `LLM.generate`, and by clients that stream from a server.

    python benchmarks/server_throughput.py [MODEL] [--requests 200] [--prompt-tokens 64] [--output-tokens 64]

Both engines are processes of their own with their defaults, and run in turn: while one computes, the other waits. In
each round (--rounds) both get the same prompts of token ids, which no earlier round had. All clients stream at the same
time, and are asyncio in this process. The time is that from the first request to the last token. Prints tokens per
second of each round, and the ratio of the medians.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

READY_SECONDS = 120.0


def prompts_of(round_number: int, args: argparse.Namespace) -> list[list[int]]:
    """Token ids that every model has, and that are no control tokens of the bundled one."""
    rng = random.Random(round_number)
    return [
        [rng.randrange(300, 1000) for _ in range(args.prompt_tokens)] for _ in range(args.requests)
    ]


def run_offline(args: argparse.Namespace) -> None:
    """Reads prompts as lines of JSON, and writes the seconds that `LLM.generate` takes for each line."""
    from pellucid import LLM, SamplingParams

    llm = LLM(args.model) if args.model else LLM()
    params = SamplingParams(temperature=0, max_tokens=args.output_tokens, ignore_eos=True)
    for line in sys.stdin:
        prompts = json.loads(line)
        start = time.perf_counter()
        llm.generate(prompts, params)
        print(time.perf_counter() - start, flush=True)


class Offline:
    """`LLM.generate` in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        words = [sys.executable, __file__, *([args.model] if args.model else []), "--offline"]
        words += ["--output-tokens", f"{args.output_tokens}"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, prompts: list[list[int]]) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(prompts), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(args: argparse.Namespace) -> Iterator[int]:
    """`pellucid serve` in a process of its own; its port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    model = [args.model] if args.model else []
    process = subprocess.Popen(
        [sys.executable, "-m", "pellucid", "serve", *model, "--port", f"{port}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the server does not start") from None
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


async def stream(port: int, prompt: list[int], num_tokens: int) -> None:
    """One client: sends its request, and reads its stream to the end."""
    fields = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
    data = json.dumps({**fields, "ignore_eos": True, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    tail = begin = await reader.readexactly(12)
    while received := await reader.read(1 << 16):
        tail = (tail + received)[-64:]
    writer.close()
    if begin != b"HTTP/1.1 200" or b"data: [DONE]" not in tail:
        raise RuntimeError(f"a stream did not end as it should: {begin + tail!r}")


async def online_seconds(port: int, prompts: list[list[int]], num_tokens: int) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(stream(port, prompt, num_tokens) for prompt in prompts))
    return time.perf_counter() - start


def measure(args: argparse.Namespace) -> None:
    num_tokens = args.requests * args.output_tokens
    print(
        f"{args.requests} requests, prompts of {args.prompt_tokens} tokens, answers of {args.output_tokens};"
        " output tokens per second"
    )
    speeds: dict[str, list[float]] = {"LLM.generate": [], "server": []}
    offline = Offline(args)
    try:
        with serving(args) as port:
            for round_number in range(-1, args.rounds):  # the first one warms up
                prompts = prompts_of(round_number, args)
                seconds = {
                    "LLM.generate": offline.seconds(prompts),
                    "server": uvloop.run(online_seconds(port, prompts, args.output_tokens)),
                }
                if round_number >= 0:
                    for name, taken in seconds.items():
                        speeds[name].append(num_tokens / taken)
    finally:
        offline.end()
    for name, measured in speeds.items():
        rounds = " ".join(f"{speed:.0f}" for speed in measured)
        print(f"  {name:12} median {statistics.median(measured):7.0f}   rounds {rounds}")
    medians = {name: statistics.median(measured) for name, measured in speeds.items()}
    print(f"  the server reaches {medians['server'] / medians['LLM.generate']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="left out, the bundled model")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--offline", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.offline:
        run_offline(args)
    else:
        measure(args)


if __name__ == "__main__":
    main()
