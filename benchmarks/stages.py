"""What it costs to cut a model into stages, on one machine: the time of a step beside that of one process, in turn, the
memory of each stage beside its plan, and what steps under way at the same time gain.

    python benchmarks/stages.py [MODEL] [--stages 1,2] [--steps 200] [--batch 1] [--num-kv-blocks N]

All processes have one thread. A boundary is what a step takes longer than in one process, divided by the number of
stages: two messages over the loopback interface, their keyed hashes, and the wake-up of a process. Of several requests
(--batch) it says how many tokens a second they get, in one process, with one step at a time, and with as many as there
are machines.
"""

import argparse
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.memory_use import OwnMemory, fill, planned_bytes
from support.stage_process import StageProcess

PROMPT = 16  # tokens


def step_times(engine: LLMEngine, batch: int, num_steps: int) -> list[float]:
    """Seconds of each decode step."""
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 1, ignore_eos=True)
    for number in range(batch):
        engine.add_request([3 + number] * PROMPT, params)
    engine.step()  # prompts
    times = []
    while engine.has_unfinished_requests:
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    return times


def tokens_per_second(engine: LLMEngine, batch: int, num_steps: int, max_steps: int) -> float:
    """Of requests that decode, with so many steps under way."""
    engine.scheduler.max_steps = max_steps
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 1, ignore_eos=True)
    outputs = [engine.add_request([3 + number] * PROMPT, params) for number in range(batch)]
    while not all(output.outputs[0].token_ids for output in outputs):
        engine.step()
    started, num_before = time.perf_counter(), _num_tokens(outputs)
    while engine.has_unfinished_requests:
        engine.step()
    return (_num_tokens(outputs) - num_before) / (time.perf_counter() - started)


def _num_tokens(outputs: list[RequestOutput]) -> int:
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def compare_steps_under_way(
    args: argparse.Namespace, num_stages: int, engine: LLMEngine, whole: LLMEngine
) -> None:
    kinds = {
        "in one process": (whole, 1),
        "one step at a time": (engine, 1),
        f"{num_stages + 1} steps under way": (engine, num_stages + 1),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, (computing, max_steps) in kinds.items():
            found[kind].append(tokens_per_second(computing, args.batch, args.steps, max_steps))
    for kind, speeds in found.items():
        each = ", ".join(f"{speed:.1f}" for speed in speeds)
        print(f"  {kind}: {median(speeds):.1f} tokens a second ({each})")


def measure(args: argparse.Namespace, num_stages: int, key: Path, whole: LLMEngine) -> None:
    with ExitStack() as stack:
        stages = [StageProcess(str(key), model=args.model) for _ in range(num_stages)]
        for stage in stages:
            stack.callback(stage.kill)
        memories = [OwnMemory(stage.pid) for stage in stages]
        before = [memory.now() for memory in memories]
        engine = LLMEngine.from_config(
            EngineConfig(
                stages=",".join(stage.address for stage in stages),
                stages_key=str(key),
                **settings(args),
            )
        )
        stack.enter_context(closing(engine))
        engine.scheduler.max_steps = 1
        alone: list[float] = []
        cut: list[float] = []
        for _ in range(args.rounds):
            alone += step_times(whole, args.batch, args.steps)
            cut += step_times(engine, args.batch, args.steps)
        boundary = (median(cut) - median(alone)) / num_stages
        tails = quantiles(cut, n=100)[98] - quantiles(alone, n=100)[98]
        print(
            f"{num_stages} stages: a step of {args.batch} takes {median(cut) * 1e3:.2f} ms,"
            f" in one process {median(alone) * 1e3:.2f} ms; a boundary {boundary * 1e3:.2f} ms"
            f" (99th percentiles: {tails / num_stages * 1e3:.2f} ms apart)"
        )
        if args.batch > 1:
            compare_steps_under_way(args, num_stages, engine, whole)
        for memory in memories:
            memory.forget_peak()
        fill(engine)
        plans = engine.plan.of_machines()
        for memory, first, (name, plan) in zip(memories, before, plans.items(), strict=False):
            planned, taken = planned_bytes(plan), memory.peak() - first
            print(
                f"  {name}: planned {planned / 1e6:.1f} MB, at most taken {taken / 1e6:.1f} MB"
                f" ({taken / planned - 1:+.1%}), before {first / 1e6:.1f} MB"
            )


def settings(args: argparse.Namespace) -> dict[str, object]:
    return dict(
        model=args.model,
        num_threads=1,
        num_kv_blocks=args.num_kv_blocks,
        max_model_len=args.max_model_len,
        speculation="off",
        skip_tokenizer_init=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--stages", default="1,2")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--num-kv-blocks", type=int)
    parser.add_argument("--max-model-len", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "key"
        key.write_bytes(secrets.token_bytes(32))
        whole = LLMEngine.from_config(EngineConfig(**settings(args)))
        for each in args.stages.split(","):
            measure(args, int(each), key, whole)


if __name__ == "__main__":
    main()
