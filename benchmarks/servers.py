"""HTTP servers under the same load, in turn, with the same weights: requests per second within a service level.

    python benchmarks/servers.py --shape smollm2-135m --rates 0.5,1,2,4,8 --ttft-slo 1 --itl-slo 0.1

Sets llama-cpp-python's server up in build/versus, as `make versus` does, and writes one GGUF file that both servers
read. `pellucid bench-serve` sends the same requests at the same times to each server; a server that is not measured
does not run. llama-cpp-python answers one request at a time. llama.cpp's own `llama-server` batches, and takes part
where it is on the PATH. `--engines pellucid vllm --file-type BF16` compares with vLLM, which reads the checkpoint
that the GGUF files were made of, in bf16.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from options import end_on_sigterm, note
from set_up_engines import ROOT, run, set_up, write_weights

READY_SECONDS = 300.0  # for a server's start
TIMEOUT = 60.0  # seconds for a whole answer: later it is of no use
NUM_SLOTS = 16  # of llama-server
ENGINES = ("pellucid", "llama-cpp-python", "llama-server", "vllm")


@dataclass(frozen=True)
class Load:
    """What is sent to each server."""

    prompt_tokens: str
    output_tokens: str
    seconds: float
    ttft_slo: float
    itl_slo: float

    def bench(
        self, url: str, rate: float, seed: int, num_requests: int | None = None
    ) -> dict[str, Any]:
        """What `pellucid bench-serve --json` says of a server at a rate; of so many requests as arrive in `seconds`."""
        if num_requests is None:
            num_requests = max(8, round(rate * self.seconds))
        words = ["bench-serve", url, "--api", "completions", "--json", "--rate", f"{rate}"]
        # A seed for each rate: otherwise a rate's first prompts are those of the rate before, and in the cache.
        words += ["--num-requests", f"{num_requests}", "--seed", f"{seed}"]
        words += ["--prompt-tokens", self.prompt_tokens, "--output-tokens", self.output_tokens]
        words += ["--ttft-slo", f"{self.ttft_slo}", "--itl-slo", f"{self.itl_slo}"]
        words += ["--timeout", f"{TIMEOUT}"]
        done = subprocess.run(
            [sys.executable, "-m", "pellucid", *words], stdout=subprocess.PIPE, check=False
        )
        return json.loads(done.stdout)


@dataclass(frozen=True)
class ServerCommand:
    """How a server is started.

    Attributes:
        variables: of its environment, where the caller's does not set them.
    """

    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


def command_of(engine: str, weights: Path, file_type: str, port: int) -> ServerCommand | None:
    """None: the server is not there."""
    model, directory = weights / f"model-{file_type}.gguf", ROOT / "build/versus"
    num_threads = f"{os.cpu_count()}"
    if engine == "pellucid":
        return ServerCommand(
            [sys.executable, "-m", "pellucid", "serve", str(model), "--port", f"{port}"]
        )
    if engine == "llama-cpp-python":
        python = set_up("llama.cpp", directory)
        run([str(python), "-m", "pip", "--quiet", "install", "llama-cpp-python[server]"])
        words = ["--model", str(model), "--port", f"{port}", "--n_ctx", "2048"]
        words += ["--interrupt_requests", "false", "--flash_attn", "true"]
        # Its defaults are half of the processors, and logits of every token of a prompt.
        words += ["--n_threads", num_threads, "--n_threads_batch", num_threads]
        words += ["--logits_all", "false"]
        return ServerCommand([str(python), "-m", "llama_cpp.server", *words])
    if engine == "llama-server":
        program = shutil.which("llama-server")
        if program is None:
            return None
        words = ["-m", str(model), "--port", f"{port}", "-np", f"{NUM_SLOTS}", "-fa", "on"]
        return ServerCommand([program, *words, "-c", f"{2048 * NUM_SLOTS}"])
    python = set_up("vllm", directory)
    words = ["--model", str(weights), "--port", f"{port}", "--max-model-len", "2048"]
    words += ["--dtype", "bfloat16"]
    variables = {  # Its default leaves one processor to the server's process.
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{int(num_threads) - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "OMP_NUM_THREADS": num_threads,
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }
    module = "vllm.entrypoints.openai.api_server"
    return ServerCommand([str(python), "-m", module, *words], variables)


@contextmanager
def serving(command: ServerCommand, port: int) -> Iterator[str]:
    """Runs a server; its URL.

    Raises:
        RuntimeError: it does not start.
    """
    with (ROOT / "build/versus/server.log").open("w") as log:
        variables = {**command.variables, **os.environ}
        process = subprocess.Popen(command.words, stdout=log, stderr=log, env=variables)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command.words[0]} does not start: see {log.name}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def measure(engine: str, weights: Path, args: argparse.Namespace, load: Load) -> dict[float, dict]:
    """By rate, what bench-serve says; rates rise until few requests are answered in time."""
    port = _free_port()
    command = command_of(engine, weights, args.file_type, port)
    if command is None:
        note(f"{engine}: left out: it is not on the PATH")
        return {}
    found: dict[float, dict] = {}
    with serving(command, port) as url:
        load.bench(url, 4.0, seed=0, num_requests=4)  # warms up
        for seed, rate in enumerate(args.rates, 1):
            found[rate] = load.bench(url, rate, seed)
            note(f"{engine}: {rate:g} requests/s: goodput {found[rate]['goodput']:.2f}")
            if found[rate]["goodput"] < 0.25 * arrivals_per_second(found[rate]):
                break
    return found


def arrivals_per_second(measured: dict[str, Any]) -> float:
    """Of the requests that were sent: the more there are, the closer to the rate of the Poisson process."""
    due = [request["due"] for request in measured["requests"]]
    return (len(due) - 1) / (max(due) - min(due))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="smollm2-135m", help="of the random weights")
    parser.add_argument("--file-type", default="Q8_0", choices=("Q8_0", "Q4_0", "BF16"))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES[:3]))
    parser.add_argument(
        "--rates", type=lambda text: [*map(float, text.split(","))], default=[0.5, 1, 2, 4, 8, 16]
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals at each rate")
    parser.add_argument("--prompt-tokens", default="128-512")
    parser.add_argument("--output-tokens", default="32-96")
    parser.add_argument("--ttft-slo", type=float, default=1.0)
    parser.add_argument("--itl-slo", type=float, default=0.1)
    parser.add_argument("--json", type=Path, help="also writes everything there")
    args = parser.parse_args()
    end_on_sigterm()
    weights = ROOT / "build/versus/weights" / args.shape
    write_weights(set_up("llama.cpp", ROOT / "build/versus"), args.shape, weights)
    load = Load(args.prompt_tokens, args.output_tokens, args.seconds, args.ttft_slo, args.itl_slo)
    found = {engine: measure(engine, weights, args, load) for engine in args.engines}
    found = {engine: by_rate for engine, by_rate in found.items() if by_rate}
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    print_table(found, args)


def print_table(found: dict[str, dict[float, dict]], args: argparse.Namespace) -> None:
    print(
        f"{args.shape}, {args.file_type}; prompts of {args.prompt_tokens} tokens, answers of"
        f" {args.output_tokens}; good: first token within {args.ttft_slo:g} s, {args.itl_slo:g} s a token\n"
    )
    print(
        f"| requests/s, arrived | {' | '.join(f'{engine}: good/s, TTFT p50' for engine in found)} |"
    )
    print(f"| ---: |{' ---: |' * len(found)}")
    for rate in args.rates:
        cells = [_cell(by_rate.get(rate)) for by_rate in found.values()]
        if any(cells):
            arrived = next(
                arrivals_per_second(each[rate]) for each in found.values() if rate in each
            )
            print(f"| {rate:g}, {arrived:.2f} | {' | '.join(cells)} |")
    best = {
        engine: max(each["goodput"] for each in by_rate.values())
        for engine, by_rate in found.items()
    }
    print(f"| best | {' | '.join(f'{goodput:.2f}' for goodput in best.values())} |")
    for engine, goodput in best.items():
        if engine != "pellucid" and "pellucid" in best and goodput:
            print(f"\npellucid's best is {best['pellucid'] / goodput:.1f} times {engine}'s")


def _cell(measured: dict | None) -> str:
    if measured is None:
        return ""
    first = measured["first_token_seconds"]
    waited = f"{first['p50']:.2f} s" if first else "-"
    return f"{measured['goodput']:.2f}, {waited}"


if __name__ == "__main__":
    main()
