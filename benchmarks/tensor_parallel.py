"""What it gains and costs that several processes compute each matrix product together, on one machine: the time of a
step beside that of one process with as many threads, in turn, what exchanges take of it, and the memory of a rank.

    python benchmarks/tensor_parallel.py [MODEL] [--ranks 2] [--threads 1] [--steps 200] [--batch 1] [--rounds 3]

needs mpirun and `pip install 'pellucid[mpi]'`. `--threads` is of each rank. An exchange's time has the wait for the
slowest rank in it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pellucid.backends.cpu.ranks import join_ranks
from pellucid.backends.native import Exchange
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from support.memory_use import OwnMemory, fill, planned_bytes

PROMPT = 256  # tokens


def run(
    engine: LLMEngine, batch: int, num_steps: int, exchange: Exchange | None = None
) -> tuple[list[float], list[float]]:
    """Seconds of each step, and of the exchanges in each: of prompts first, then of decoding."""
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 1, ignore_eos=True)
    for number in range(batch):
        engine.add_request([3 + number] * PROMPT, params)
    times, exchanging = [], []
    while engine.has_unfinished_requests:
        before = 0.0 if exchange is None else exchange.seconds
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
        exchanging.append(0.0 if exchange is None else exchange.seconds - before)
    return times, exchanging


def measure(args: argparse.Namespace) -> None:
    """In a process of its own: prints what it has measured, as JSON. Other ranks than 0 end while the model loads."""
    settings = dict(
        model=args.model,
        max_num_seqs=args.batch,
        max_model_len=PROMPT + args.steps + 1,
        speculation="off",
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    if args.measure == 1:
        config = EngineConfig(num_threads=args.ranks * args.threads, **settings)
    else:
        config = EngineConfig(num_threads=args.threads, tensor_parallel_size=args.ranks, **settings)
    # MPI takes some megabytes of its own before.
    exchange = join_ranks(args.ranks).exchange if args.measure > 1 else None
    memory = OwnMemory()
    before = memory.now()
    with closing(LLMEngine.from_config(config)) as engine:
        memory.forget_peak()
        run(engine, args.batch, 8)
        num_calls = 0 if exchange is None else exchange.num_calls
        (prompt, *decoding), (_, *exchanging) = run(engine, args.batch, args.steps, exchange)
        if exchange is not None:
            num_calls = exchange.num_calls - num_calls
        calls = num_calls / (1 + len(decoding))
        fill(engine)
        plan = engine.memory_plan
        print(
            json.dumps(
                {
                    "prompt": prompt,
                    "step": median(decoding),
                    "quickest step": min(decoding),
                    "calls": calls,
                    "exchange": median(exchanging) / max(1, calls),
                    "quickest exchange": min(exchanging) / max(1, calls),
                    "weights": plan.weights,
                    "planned": planned_bytes(plan),
                    "taken": memory.peak() - before,
                }
            )
        )


def measured(args: argparse.Namespace, num_ranks: int) -> dict[str, float]:
    command = [sys.executable, *sys.argv, "--measure", str(num_ranks)]
    if num_ranks > 1:
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = ["mpirun", "-n", str(num_ranks), "--bind-to", "none", *as_root, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        measure(args)
        return
    rounds = [(measured(args, 1), measured(args, args.ranks)) for _ in range(args.rounds)]
    for name in ("prompt", "step", "quickest step"):
        ratios = [one[name] / divided[name] for one, divided in rounds]
        alone, together = (median(each[side][name] for each in rounds) for side in (0, 1))
        print(
            f"{name}: one process {alone * 1e3:.2f} ms, {args.ranks} ranks {together * 1e3:.2f} ms;"
            f" {median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    divided = [each for _, each in rounds]
    calls, exchange = (median(each[name] for each in divided) for name in ("calls", "exchange"))
    quickest = min(each["quickest exchange"] for each in divided)
    print(
        f"exchanges: {calls:.0f} a step, {exchange * 1e6:.1f} us each;"
        f" {quickest * 1e6:.1f} us in the step in which they took least"
    )
    for name, side in (("one process", 0), ("a rank", 1)):
        weights, planned, taken = (
            median(each[side][key] for each in rounds) for key in ("weights", "planned", "taken")
        )
        print(
            f"{name}: {planned / 1e6:.1f} MB planned, of which weights {weights / 1e6:.1f}; taken"
            f" at most {taken / 1e6:.1f} MB ({taken / planned - 1:+.1%})"
        )


if __name__ == "__main__":
    main()
