"""What serving costs in throughput: the same requests by `LLM.generate`, and by clients that stream from a server.

    python benchmarks/server_throughput.py [MODEL] [--requests 128] [--prompt-tokens 64] [--output-tokens 64]

`LLM.generate`, the server and the clients are a process each, and the two engines compute in turn: while one computes,
the other waits. In each round both get the same prompts of token ids, which no earlier round had; which of them is
first changes from round to round. All clients of a round stream at the same time. The time is that from the first
request to the last token.

Prints the median and the quartiles of the rounds: what share of `LLM.generate`'s tokens per second the server reaches,
and the processor time of each part, by the kernel's count: where other programs use the machine as well, it varies less
than the wall time. Compute threads that wait for each other use processor time, unless --num-threads is 1. The clients
are no part of the server, but use the same cores.
"""

import argparse
import json
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 120.0
END_OF_STREAM = b"data: [DONE]\n\n\r\n0\r\n\r\n"
READ_BYTES = 4096  # some frames: to make room for many more takes longer than to read one
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: "
Prompts = list[list[int]]


def prompts_of(round_number: int, args: argparse.Namespace) -> Prompts:
    """Token ids that every model has, and that are no control tokens of the bundled one."""
    rng = random.Random(round_number)
    return [
        [rng.randrange(300, 1000) for _ in range(args.prompt_tokens)] for _ in range(args.requests)
    ]


def run_offline(args: argparse.Namespace) -> Callable[[Prompts], object]:
    from pellucid import LLM, SamplingParams

    llm = LLM(args.model, num_threads=args.num_threads)
    params = SamplingParams(temperature=0, max_tokens=args.output_tokens, ignore_eos=True)
    return lambda prompts: llm.generate(prompts, params, use_tqdm=False)


def run_clients(args: argparse.Namespace) -> Callable[[Prompts], object]:
    """Clients that send a request each and read their streams to the end: one thread reads all, so that they cost
    little."""
    fields = {"max_tokens": args.output_tokens, "temperature": 0, "ignore_eos": True}

    def read_all(prompts: Prompts) -> None:
        with select.epoll() as events, ExitStack() as stack:
            tails: dict[
                int, bytes
            ] = {}  # the last bytes of each unfinished stream, by its descriptor
            for prompt in prompts:
                data = json.dumps({"prompt": prompt, **fields, "stream": True}).encode()
                connection = socket.create_connection(("127.0.0.1", args.clients_of))
                stack.enter_context(connection)
                connection.sendall(f"{HEAD}{len(data)}\r\n\r\n".encode() + data)
                events.register(connection, select.EPOLLIN)
                tails[connection.fileno()] = b""
            while tails:
                for number, _ in events.poll():
                    received = os.read(number, READ_BYTES)
                    if not tails[number] and not received.startswith(b"HTTP/1.1 200"):
                        raise RuntimeError(f"not the begin of a stream: {received!r}")
                    tails[number] = (tails[number] + received)[-len(END_OF_STREAM) :]
                    if tails[number] == END_OF_STREAM:
                        events.unregister(number)
                        del tails[number]
                    elif not received:
                        raise RuntimeError("a stream did not end as it should")

    return read_all


def work(task: Callable[[Prompts], object]) -> None:
    """Does a task for each line of stdin, and writes the seconds that it took."""
    print("ready", flush=True)
    for line in sys.stdin:
        prompts = json.loads(line)
        start = time.perf_counter()
        task(prompts)
        print(time.perf_counter() - start, flush=True)


class Worker:
    """A process that does a task for one list of prompts after the other.

    Args:
        words: its command line.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def seconds(self, prompts: Prompts) -> float:
        assert self.process.stdin is not None
        print(json.dumps(prompts), file=self.process.stdin, flush=True)
        return float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError("a process of the benchmark failed")
        return line


@contextmanager
def ended_at_exit(process: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


def start_server(args: argparse.Namespace) -> tuple["subprocess.Popen[str]", int]:
    """`pellucid serve`, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    words = [args.model] if args.model else []
    if args.num_threads is not None:
        words += ["--num-threads", f"{args.num_threads}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pellucid", "serve", *words, "--port", f"{port}"],
        stderr=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + READY_SECONDS
    while not is_ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError("the server does not start")
        time.sleep(0.1)
    return process, port


def is_ready(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds that a process has used so far.

    Attributes:
        main: of the thread that it began with: in the server, of the event loop.
        others: of its other threads.
    """

    main: float
    others: float

    @classmethod
    def of(cls, process: "subprocess.Popen[str]") -> "ProcessorTime":
        # Threads that have ended are missing: the engines' do not end
        seconds = {
            int(path.parent.name): int(path.read_text().split()[0]) / 1e9
            for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        }
        main = seconds.pop(process.pid)
        return cls(main, sum(seconds.values()))

    def __sub__(self, other: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.main - other.main, self.others - other.others)


def measure(args: argparse.Namespace) -> None:
    options = ["--output-tokens", f"{args.output_tokens}"]
    offline_options = [args.model] if args.model else []
    if args.num_threads is not None:
        offline_options += ["--num-threads", f"{args.num_threads}"]
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        offline = Worker([*offline_options, *options, "--offline"])
        stack.enter_context(ended_at_exit(offline.process))
        server, port = start_server(args)
        stack.enter_context(ended_at_exit(server))
        clients = Worker([*options, "--clients-of", f"{port}"])
        stack.enter_context(ended_at_exit(clients.process))

        def generate(prompts: Prompts) -> dict[str, float]:
            before = ProcessorTime.of(offline.process)
            seconds = offline.seconds(prompts)
            used = ProcessorTime.of(offline.process) - before
            return {"generate": seconds, "generate's threads": used.main + used.others}

        def serve(prompts: Prompts) -> dict[str, float]:
            before = [ProcessorTime.of(each) for each in (server, clients.process)]
            seconds = clients.seconds(prompts)
            after = [ProcessorTime.of(each) for each in (server, clients.process)]
            loop, client = (last - first for first, last in zip(before, after, strict=True))
            return {
                "serve": seconds,
                "server's event loop": loop.main,
                "server's other threads": loop.others,
                "clients": client.main,
            }

        for round_number in range(-1, args.rounds):  # the first one warms up
            prompts = prompts_of(round_number, args)
            turns = (generate, serve) if round_number % 2 else (serve, generate)
            seconds = turns[0](prompts) | turns[1](prompts)
            if round_number >= 0:
                for name, taken in seconds.items():
                    found.setdefault(name, []).append(taken)
    show(found, args)


def show(found: dict[str, list[float]], args: argparse.Namespace) -> None:
    num_tokens = args.requests * args.output_tokens
    print(
        f"{args.requests} requests, prompts of {args.prompt_tokens} tokens, answers of {args.output_tokens},"
        f" {args.rounds} rounds: medians (quartiles)"
    )
    generate, serve = found.pop("generate"), found.pop("serve")
    for name, seconds in (("LLM.generate", generate), ("server", serve)):
        print(f"  {name:25}{spread([num_tokens / each for each in seconds], '.0f')} tokens/s")
    shares = [mine / theirs for mine, theirs in zip(generate, serve, strict=True)]
    print(f"  {'the server reaches':25}{spread(shares, '.3f')} of LLM.generate's tokens/s")
    print("processor time, microseconds a token")
    for name, seconds in found.items():
        print(f"  {name:25}{spread([each / num_tokens * 1e6 for each in seconds], '.1f')}")


def spread(values: list[float], form: str) -> str:
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median:{form}} ({first:{form}}, {third:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="left out, the bundled model")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--num-threads", type=int, help="compute threads of each engine")
    parser.add_argument("--offline", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--clients-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.offline:
        work(run_offline(args))
    elif args.clients_of is not None:
        work(run_clients(args))
    else:
        measure(args)


if __name__ == "__main__":
    main()
