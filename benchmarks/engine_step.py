"""The time that the engine itself takes in a decode step, measured with a model that takes none.

    python benchmarks/engine_step.py [--running 64] [--depth 128] [--steps 300]

All requests decode, greedily, and nobody listens to events. Prints the median of each part of a step in
microseconds, and the sum of `schedule` and `update`, which is the scheduler's own time.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from pellucid.backends.base import StepLogits
from pellucid.engine import LLMEngine
from pellucid.engine.completion import Completion
from pellucid.execution import model_runner
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams

WARM_UP_STEPS = 10


class NoModel:
    """A `CompiledDecoder` that has the same logits in every step, at once."""

    draws_tokens = True

    def __init__(self, vocab_size: int, max_rows: int) -> None:
        self.vocab_size = vocab_size
        rows = np.random.default_rng(0).normal(size=(max_rows, vocab_size)).astype(np.float32)
        self._logits = StepLogits(rows, rows.argmax(axis=1).tolist())

    def step(self, batch, kv_cache, draws=None):
        return self._logits


class Stopwatch:
    """Seconds of each call, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def watch(self, owner: object, name: str, label: str | None = None) -> None:
        setattr(owner, name, self._timed(getattr(owner, name), label or name))

    def _timed(self, function: Callable, label: str) -> Callable:
        def timed(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[label].append(time.perf_counter() - begin)

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--depth", type=int, default=128, help="tokens of each request's prompt")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    length = args.depth + args.steps + WARM_UP_STEPS + 1
    engine = LLMEngine.from_config(
        EngineConfig(
            speculation="off",
            max_num_seqs=args.running,
            num_kv_blocks=args.running * -(-length // 32),
            max_num_batched_tokens=args.running * args.depth,
        )
    )
    vocab_size = engine.model_config.vocab_size
    engine.model_runner.decoder = NoModel(vocab_size, args.running)
    rng = np.random.default_rng(1)
    params = SamplingParams(
        temperature=0, max_tokens=args.steps + WARM_UP_STEPS + 1, ignore_eos=True
    )
    for _ in range(args.running):
        engine.add_request(rng.integers(vocab_size, size=args.depth).tolist(), params)
    for _ in range(1 + WARM_UP_STEPS):
        engine.step()

    watch = Stopwatch()
    watch.watch(engine, "step")
    watch.watch(engine.scheduler, "schedule")
    watch.watch(engine.scheduler, "update")
    watch.watch(model_runner, "build_forward_batch", "forward batch")
    watch.watch(engine.model_runner, "sample")
    watch.watch(Completion, "take", "text")
    for _ in range(args.steps):
        engine.step()

    step = watch.seconds.pop("step")
    # One call for each request: a step's together.
    texts = np.array(watch.seconds.pop("text")).reshape(args.steps, args.running)
    watch.seconds["text"] = texts.sum(axis=1).tolist()
    parts = {name: statistics.median(seconds) * 1e6 for name, seconds in watch.seconds.items()}
    total = statistics.median(step) * 1e6
    parts["everything else"] = total - sum(parts.values())
    print(
        f"{args.running} requests decode at depth {args.depth}: {total:.0f} us a step without a model"
    )
    for name, microseconds in parts.items():
        print(f"  {microseconds:8.1f} us  {name}")
    print(f"scheduler: {parts['schedule'] + parts['update']:.0f} us")


if __name__ == "__main__":
    main()
