"""Time to the first token of a prompt: never seen, seen before, and in another engine, from the prefix store.

    python benchmarks/prefix_cache.py [MODEL] [--quantization int8] [--prompt 2000] [--rounds 5]
    python benchmarks/prefix_cache.py --shape qwen3.5-0.8b
    python benchmarks/prefix_cache.py --shape qwen2.5-0.5b --store redis://127.0.0.1:6379/0

Also what prefix caching costs where nothing is shared: in memory, and with blocks going to the store as well.
All arms take turns, so that what else the machine does meets them alike. A restart is a new engine with an
empty pool on the same weights; its files are read from the disk, not from the system's memory, as far as
the system follows the request to forget them.

What prefix caching adds to a prompt never seen is work of the scheduler alone, and is lost in the noise of
seconds of prefill. So it is measured there as well, without a model.
"""

import argparse
import os
import secrets
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pellucid.benchmark.random_model import random_model
from pellucid.benchmark.workloads import Prefill
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler import Scheduler

SCHEDULED_PROMPTS = 200
COLD, SEEN, RESTARTED = "never seen", "seen before", "another engine, from the store"
OFF, IN_MEMORY, STORED = "off", "in memory", "in memory and in the store"


@dataclass(frozen=True)
class FirstToken:
    seconds: float
    num_cached_tokens: int
    token_ids: tuple[int, ...]


def first_token(engine: LLMEngine, prompt: Sequence[int]) -> FirstToken:
    """Of a request that is alone."""
    start = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    output = engine.add_request(list(prompt), params)
    while engine.has_unfinished_requests:
        engine.step()
    seconds = time.perf_counter() - start
    return FirstToken(seconds, output.num_cached_tokens, tuple(output.outputs[0].token_ids))


def forget_files(directory: Path) -> None:
    """Asks the system to drop its copies of what the files hold."""
    for path in directory.rglob("*.kv"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def measure(
    model: LoadedModel, config: EngineConfig, num_tokens: int, rounds: int, store: EngineConfig
) -> dict[str, list[FirstToken]]:
    """What each arm took, by its name. `store`: the same with a prefix store."""
    assert store.prefix_store is not None
    engines = {
        OFF: LLMEngine(replace(config, enable_prefix_caching=False), model),
        IN_MEMORY: LLMEngine(config, model),
        STORED: LLMEngine(store, model),
    }
    rng = np.random.default_rng(0)

    def prompt() -> list[int]:
        return rng.integers(0, model.config.vocab_size, num_tokens).tolist()

    for engine in engines.values():  # the first step pays for memory that nobody has touched
        first_token(engine, prompt())
    taken: dict[str, list[FirstToken]] = defaultdict(list)
    for round_number in range(rounds):
        own = prompt()
        # Every arm is the first in its turn: each stands in the others' heat once.
        names = list(engines)
        for name in names[round_number % 3 :] + names[: round_number % 3]:
            taken[name].append(first_token(engines[name], own))
        taken[SEEN].append(first_token(engines[IN_MEMORY], own))
        engines[STORED].close()
        if not store.shares_prefix_store:
            forget_files(Path(store.prefix_store))
        engines[STORED] = LLMEngine(store, model)
        taken[RESTARTED].append(first_token(engines[STORED], own))
    tokens = {each.token_ids for each in (taken[OFF][-1], taken[SEEN][-1], taken[RESTARTED][-1])}
    assert len(tokens) == 1, "the same prompt, another answer"
    return taken


def scheduling_seconds(config: EngineConfig, num_tokens: int) -> dict[bool, float]:
    """Median time in the scheduler of a prompt never seen, with prefix caching and without."""
    num_blocks = 4 * (num_tokens // config.block_size + 1)  # most of them have to be evicted
    schedulers = {
        enabled: Scheduler(
            KVCacheManager(BlockPool(num_blocks), config.block_size, enabled),
            EventBus(),
            config.max_num_seqs,
            config.max_num_batched_tokens,
        )
        for enabled in (False, True)
    }
    rng = np.random.default_rng(0)
    taken: dict[bool, list[float]] = defaultdict(list)
    for number in range(SCHEDULED_PROMPTS):
        prompt = tuple(rng.integers(0, 2**17, num_tokens).tolist())
        for enabled, scheduler in schedulers.items():
            params = SamplingParams(max_tokens=1)
            request = Request(str(number), prompt, params, seed=0, arrival_time=0.0, max_tokens=1)
            start = time.perf_counter()
            scheduler.add_request(request)
            while scheduler.has_unfinished_requests:
                step = scheduler.schedule(now=0.0)
                sampled = {
                    request_id: request.end_rule.take([0], 0)
                    for share in step.scheduled
                    for request_id in share.samplers
                }
                scheduler.update(step, sampled, now=0.0)
            taken[enabled].append(time.perf_counter() - start)
    return {enabled: statistics.median(seconds) for enabled, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="as `pellucid run`; left out, the bundled model")
    parser.add_argument("--shape", help="random weights of a known model's shape instead")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--kv-cache-dtype", default="bf16")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--prompt", type=int, default=2000, metavar="N", help="tokens (2000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", help="redis://host:port/db; left out, a directory")
    args = parser.parse_args()
    config = EngineConfig(
        speculation="off",
        model=args.model,
        quantization=args.quantization,
        kv_cache_dtype=args.kv_cache_dtype,
        num_threads=args.num_threads,
        max_num_seqs=4,
    )
    with tempfile.TemporaryDirectory() as directory:
        if args.shape is None:
            model = load_model(config)
        else:  # blocks on disk are of the files of a checkpoint: it has none
            model = random_model(args.shape, config, [Prefill(args.prompt)])
            model = replace(model, path=Path(directory))
        key = Path(directory) / "key"
        key.write_text(secrets.token_hex(16))
        blocks = args.store or str(Path(directory) / "blocks")
        store = replace(config, prefix_store=blocks, prefix_store_key=str(key))
        taken = measure(model, config, args.prompt, args.rounds, store)

    def median(name: str) -> float:
        return statistics.median(each.seconds for each in taken[name])

    def line(name: str, what: str, cached: int) -> str:
        times = sorted(each.seconds for each in taken[name])
        return (
            f"{what:31} {1e3 * median(name):8.1f} ms  ({1e3 * times[0]:.1f} .. {1e3 * times[-1]:.1f})"
            f"  {cached:5} tokens cached"
        )

    cold = median(IN_MEMORY)
    print(f"first token after a prompt of {args.prompt} tokens, median of {args.rounds}")
    for name, what in ((IN_MEMORY, COLD), (SEEN, SEEN), (RESTARTED, RESTARTED)):
        ratio = f"  {cold / median(name):6.1f}x sooner" if name != IN_MEMORY else ""
        print(line(name, what, taken[name][-1].num_cached_tokens) + ratio)
    print("\nnothing shared, prefix caching")
    for name in (OFF, IN_MEMORY, STORED):
        ratios = [
            each.seconds / off.seconds for each, off in zip(taken[name], taken[OFF], strict=True)
        ]
        cost = f"  {statistics.median(ratios) - 1:+.2%}" if name != OFF else ""
        print(line(name, name, taken[name][-1].num_cached_tokens) + cost)
    scheduling = scheduling_seconds(config, args.prompt)
    added = scheduling[True] - scheduling[False]
    print(
        f"in the scheduler, per prompt: {1e6 * scheduling[False]:.0f} us off,"
        f" {1e6 * scheduling[True]:.0f} us on; the difference is {added / median(OFF):.3%} of the above"
    )


if __name__ == "__main__":
    main()
