"""What Ray Serve adds to a first token and to a streamed one: the same requests to `pellucid serve`, to `pellucid serve
--replicas 2` and to the application of `pellucid.serve_ray`, in turn.

    .venv-ray/bin/python benchmarks/ray_latency.py [MODEL] [--prompt 64] [--tokens 64] [--streams 1] [--rounds 20]

needs `pip install 'pellucid[ray]'` and `pellucid[server]`; `make .venv/.ray` makes such an environment. Each engine has
one thread; those that do not answer wait. A round sends `--streams` requests at once to each server, with prompts that
nobody has sent before. A first token counts from the call to its frame, and a streamed one is the time between two
frames with text. Prints medians of all rounds, and what each server adds to that of `pellucid serve`, round by round.
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

START_SECONDS = 300.0


class Times(NamedTuple):
    """Seconds of a stream."""

    first: float
    between: float  # two tokens, on average


def stream(port: int, prompt: list[int], num_tokens: int) -> Times:
    body = {
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)) as call:
        call.connect()
        assert call.sock is not None
        call.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.perf_counter()
        call.request("POST", "/v1/completions", json.dumps(body))
        reply = call.getresponse()
        assert reply.status == 200, reply.read()
        first, last, num_got = 0.0, 0.0, 0
        while line := reply.readline():
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            if got := sum(len(each.get("token_ids") or ()) for each in choices):
                last = time.perf_counter()
                if not num_got:
                    first, num_before = last, got
                num_got += got
        assert num_got == num_tokens, num_got
        return Times(first - begin, (last - first) / (num_got - num_before))


def round_of(port: int, prompts: list[list[int]], num_tokens: int) -> Times:
    """Means of streams that begin at once."""
    found: list[Times] = []
    threads = [
        threading.Thread(target=lambda own=own: found.append(stream(port, own, num_tokens)))
        for own in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(prompts)
    return Times(*(sum(each) / len(each) for each in zip(*found, strict=True)))


@contextmanager
def pellucid(args: argparse.Namespace, *options: str) -> Iterator[int]:
    """`pellucid serve`."""
    words = ["serve", *([args.model] if args.model else []), "--port", "0", "--num-threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pellucid", *words, "--speculation", "off", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        lines: list[str] = []
        while (
            found := re.search(r"http://127\.0\.0\.1:(\d+)", lines[-1] if lines else "")
        ) is None:
            lines.append(process.stderr.readline())
            if not lines[-1]:
                raise SystemExit("".join(lines))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(found[1])
    finally:
        process.kill()
        process.wait()


def patiently(ask: Callable[[], Any]) -> Any:
    """Asks until there is an answer."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(RuntimeError):
            return ask()
        time.sleep(1)
    return ask()


@contextmanager
def on_ray(args: argparse.Namespace) -> Iterator[int]:
    """The application of `pellucid.serve_ray`, on one node of Ray."""
    import ray
    from ray import serve
    from ray._private import services
    from ray.cluster_utils import Cluster
    from ray.serve._private import api

    from pellucid.serve_ray import build

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ask = (
        services.get_node
    )  # which Ray gives 30 seconds: a busy machine may take more to start a node
    services.get_node = lambda *args: patiently(lambda: ask(*args))
    api.HTTP_PROXY_TIMEOUT = START_SECONDS
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "include_log_monitor": False},
    )
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    settings: dict[str, Any] = {"allow_anyone": True, "speculation": "off", "num_replicas": 2}
    if args.model:
        settings["model"] = str(Path(args.model).resolve())
    try:
        serve.run(build(settings), name="default", route_prefix="/")
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def shown(name: str, times: list[float], alone: list[float]) -> str:
    added = [own - other for own, other in zip(times, alone, strict=True)]
    low, *_, high = quantiles(added, n=4)
    text = f"{name} {median(times) * 1e3:.2f} ms"
    if times is alone:
        return text
    return f"{text}, {median(added) * 1e3:+.2f} ({low * 1e3:+.2f} to {high * 1e3:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(int(START_SECONDS * 1000)))
    for check in ("READY", "HEALTH"):
        os.environ.setdefault(f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S", str(START_SECONDS))
    servers: dict[str, Callable[[], Any]] = {
        "pellucid serve": lambda: pellucid(args),
        "--replicas 2": lambda: pellucid(args, "--replicas", "2"),
        "Ray Serve": lambda: on_ray(args),
    }
    rng = random.Random(0)
    with ExitStack() as stack:
        ports = {name: stack.enter_context(start()) for name, start in servers.items()}
        times: dict[str, list[Times]] = {name: [] for name in ports}
        for number in range(args.rounds + 2):
            for name, port in sorted(ports.items(), key=lambda _: rng.random()):
                prompts = [
                    [rng.randrange(3, 200) for _ in range(args.prompt)] for _ in range(args.streams)
                ]
                found = round_of(port, prompts, args.tokens)
                if number >= 2:  # the first ones warm up
                    times[name].append(found)
    for what, field in (("a first token", "first"), ("a streamed token", "between")):
        columns = {name: [getattr(each, field) for each in own] for name, own in times.items()}
        alone = columns["pellucid serve"]
        print(f"{what}: " + "; ".join(shown(*each, alone) for each in columns.items()))


if __name__ == "__main__":
    main()
