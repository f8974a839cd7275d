"""How long the router of replicas takes to place a request: percentiles, with the hashes of its prompt.

python benchmarks/router.py
"""

import random
import time

from pellucid.cluster.block_labels import prompt_labels
from pellucid.cluster.router import Router
from pellucid.scheduling.block import NO_SALT

BLOCK = 32
NUM_REQUESTS = 2000


def percentiles(num_replicas: int, num_tokens: int) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds: half of each prompt is cached on one of the replicas."""
    rng = random.Random(1)
    router = Router(BLOCK)
    prefixes = [[rng.randrange(50_000) for _ in range(num_tokens // 2)] for _ in range(16)]
    for replica in range(num_replicas):
        router.join(replica)
        for prefix in prefixes[replica::num_replicas]:
            for block in prompt_labels([*prefix, 0], BLOCK, NO_SALT):
                router.added(replica, block)
    times = []
    for index in range(NUM_REQUESTS):
        prompt = [*rng.choice(prefixes), *(rng.randrange(50_000) for _ in range(num_tokens // 2))]
        started = time.thread_time()
        router.place(f"r{index}", prompt_labels(prompt, BLOCK, NO_SALT), num_tokens)
        times.append((time.thread_time() - started) * 1e3)
        router.ended(f"r{index - 64}")
    times.sort()
    return times[NUM_REQUESTS // 2], times[NUM_REQUESTS * 99 // 100]


def main() -> None:
    print("replicas  tokens  median ms  p99 ms   (processor time)")
    for num_replicas in (2, 64, 1_000):
        for num_tokens in (2_000, 16_000):
            median, p99 = percentiles(num_replicas, num_tokens)
            print(f"{num_replicas:8}  {num_tokens:6}  {median:9.3f}  {p99:6.3f}")


if __name__ == "__main__":
    main()
