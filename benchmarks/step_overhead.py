"""The parts of a decode step's time: scheduler and sampler, the call into native code, its stages.

    python benchmarks/step_overhead.py [MODEL] [--quantization int4] [--num-threads 2] [--steps 200]

Prints the median step in microseconds and what is not kernels: everything outside of the native call, and
in it what the stages do not account for.
"""

import argparse
import statistics
import time
from collections import Counter

from pellucid.backends.cpu.program_decoder import ProgramDecoder
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams

WARM_UP_STEPS = 10


class TimedDecoder:
    """Takes notes of every step of one decoder."""

    def __init__(self, decoder: ProgramDecoder) -> None:
        self._decoder = decoder
        self.draws_tokens = decoder.draws_tokens
        self.vocab_size = decoder.vocab_size
        self.forward_seconds: list[float] = []
        self.own_seconds: list[float] = []
        self.stages: list[list[tuple[str, float]]] = []

    def step(self, batch, kv_cache, draws=None):
        start = time.perf_counter()
        stages = self._decoder.profile(batch, kv_cache)  # writes to the cache what step writes
        begin = time.perf_counter()
        logits = self._decoder.step(batch, kv_cache, draws)
        end = time.perf_counter()
        self.own_seconds.append(begin - start)
        self.forward_seconds.append(end - begin)
        self.stages.append(stages)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    engine = LLMEngine.from_config(
        EngineConfig(
            speculation="off",
            model=args.model,
            backend="cpu",
            quantization=args.quantization,
            num_threads=args.num_threads,
        )
    )
    decoder = TimedDecoder(engine.model_runner.decoder)
    engine.model_runner.decoder = decoder
    params = SamplingParams(temperature=0, max_tokens=args.steps + WARM_UP_STEPS, ignore_eos=True)
    engine.add_request([engine.tokenizer.encode("Once upon a time")[0]], params)
    outside = []
    while engine.has_unfinished_requests:
        begin = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - begin
        outside.append(seconds - decoder.forward_seconds[-1] - decoder.own_seconds[-1])

    kept = slice(WARM_UP_STEPS, None)
    forward = statistics.median(decoder.forward_seconds[kept])
    engine_part = statistics.median(outside[kept])
    by_name: Counter[str] = Counter()
    for stages in decoder.stages[kept]:
        for name, seconds in stages:
            by_name[name] += seconds / len(decoder.stages[kept])
    in_stages = sum(by_name.values())
    step = forward + engine_part
    print(f"step {step * 1e6:.0f} us")
    for name, seconds in by_name.most_common():
        print(f"  {seconds / step:6.1%}  {seconds * 1e6:8.1f} us  {name}")
    print(f"  {(forward - in_stages) / step:6.1%}  {(forward - in_stages) * 1e6:8.1f} us  the call")
    print(f"  {engine_part / step:6.1%}  {engine_part * 1e6:8.1f} us  scheduler, sampler, text")


if __name__ == "__main__":
    main()
