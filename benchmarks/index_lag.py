"""How long after a change a router's index has it: the front's of `--replicas`, and one that reads KV events.

    python benchmarks/index_lag.py [--events 100000] [--replicas 2]

Replicas of the bundled model have few blocks, so that most of what a prompt brings is evicted soon. Whenever a round of
prompts has ended, the front's index is compared with what the replicas say that they have: the time is that of asking
them. In the middle a replica is killed, and another one joins. KV events are changes drawn at random, over ZeroMQ to a
reader on a thread of the same process; after each thousand, the time until its index is the publisher's.
"""

import argparse
import asyncio
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import zmq

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pellucid.cluster import dispatcher
from pellucid.cluster.block_labels import LABELLED_GROUP, label
from pellucid.cluster.router import Router
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.block import NO_SALT, BlockKey
from pellucid.server.config import KVEventsConfig
from pellucid.server.kv_events.publisher import END, KVEventPublisher
from support.kv_event_reader import KVEventReader
from support.replicas import Asked, RunningPool

BLOCK = 16
ROUND = 24  # prompts
MAX_BLOCKS = 2000  # that the publisher of drawn changes has
BURST, PAUSE = 64, 0.005  # changes at once, as of a step; seconds
LATE = 7  # readers that come late
ANY_PORT = "tcp://127.0.0.1:*"


class CountingRouter(Router):
    """Counts what replicas tell of their blocks."""

    num_events = 0

    def added(self, number: int, block: int) -> None:
        CountingRouter.num_events += 1
        super().added(number, block)

    def removed(self, number: int, block: int) -> None:
        CountingRouter.num_events += 1
        super().removed(number, block)


def lags_of_the_front(num_replicas: int, num_events: int) -> tuple[list[float], float]:
    """Seconds after each round, and those after another replica has joined."""
    dispatcher.Router = CountingRouter  # type: ignore[misc]
    pool = RunningPool.of_processes(
        num_replicas, num_kv_blocks=40, block_size=BLOCK, max_model_len=256, speculation="off"
    )
    rng = random.Random(1)

    async def lag() -> float:
        started = time.monotonic()
        answers = await pool.pool.answers(with_blocks=True)
        routed = await pool.pool.routed_blocks()
        assert {number: set(each.blocks) for number, each in answers.items()} == routed
        return time.monotonic() - started

    async def run() -> tuple[list[float], float]:
        await pool.until_all_are_ready()
        lags, joined = [], 0.0
        while CountingRouter.num_events < num_events:
            beginnings = [[rng.randrange(5, 900)] * 6 * BLOCK for _ in range(6)]
            prompts = [
                rng.choice(beginnings) + [rng.randrange(5, 900) for _ in range(9 * BLOCK)]
                for _ in range(ROUND)
            ]
            await pool.answers(
                [Asked(each, SamplingParams(max_tokens=1), None) for each in prompts]
            )
            lags.append(await lag())
            if not joined and CountingRouter.num_events > num_events / 2:
                pool.kill_one(rng)
                await asyncio.sleep(1.0)
                await pool.until_all_are_ready()
                joined = await lag()
        return lags, joined

    try:
        return pool.run(run())
    finally:
        pool.close()


class Reader(threading.Thread):
    """Follows a publisher; asks for what was before its first message, as routers do."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", publisher: KVEventPublisher
    ) -> None:
        super().__init__(daemon=True)
        self.index = KVEventReader()
        self.told_at = 0.0  # when the first message came
        self.is_ending = False
        self._events, self._asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self._events.subscribe(b"")
        self._events.connect(publisher.endpoint)
        self._asker.connect(publisher.replay_endpoint)
        self.start()

    def run(self) -> None:
        while not self.is_ending:
            if not self._events.poll(20):
                continue
            _, frame, payload = self._events.recv_multipart()
            number = int.from_bytes(frame, "big")
            self.told_at = self.told_at or time.monotonic()
            last = self.index.last_number
            if last is None or number > last + 1:
                self._ask((last or 0) + 1)
            if number > (self.index.last_number or 0):
                self.index.read(number, payload)
        self._events.close(0)
        self._asker.close(0)

    def end(self) -> None:
        self.is_ending = True
        self.join()

    def _ask(self, number: int) -> None:
        self._asker.send_multipart([b"", number.to_bytes(8, "big")])
        while (answer := self._asker.recv_multipart())[1] != END:
            self.index.read(int.from_bytes(answer[1], "big"), answer[2])

    def seconds_until(self, expected: set[int]) -> float:
        """How long it takes until the index has these labels."""
        started = time.monotonic()
        while set(self.index.chains) != expected:
            time.sleep(0.0005)
        return time.monotonic() - max(started, self.told_at)


def lags_of_a_reader(num_events: int) -> tuple[list[float], float]:
    """Seconds after each thousand changes, and those that late readers take from their first message on (median)."""
    rng = random.Random(2)
    publisher = KVEventPublisher(
        KVEventsConfig(endpoint=ANY_PORT, replay_endpoint=ANY_PORT), BLOCK, LABELLED_GROUP
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    reader = Reader(context, publisher)
    chains: list[list[BlockKey]] = []  # of a text each, without gaps
    present: set[int] = set()
    lags: list[float] = []

    def change() -> None:
        if len(present) >= MAX_BLOCKS or (chains and rng.random() < 0.4):
            chain = rng.choice(chains)
            key = chain.pop()
            if not chain:
                chains.remove(chain)
            present.remove(label(key.block_hash))
            publisher.removed(key)
            return
        if not chains or rng.random() < 0.1:
            chains.append([])
        chain = chains[-1] if not chains[-1] else rng.choice(chains)
        parent = chain[-1].block_hash if chain else bytes(32)
        tokens = tuple(rng.randrange(1000) for _ in range(BLOCK))
        key = BlockKey(rng.randbytes(32), parent, len(chain), tokens, LABELLED_GROUP, "", NO_SALT)
        chain.append(key)
        present.add(label(key.block_hash))
        publisher.added(key)

    while not reader.told_at:
        time.sleep(0.01)
    for number in range(num_events):
        change()
        if number % BURST == 0:
            time.sleep(PAUSE)
        if number % 1000 == 999:
            lags.append(reader.seconds_until(present))
    reader.end()
    joined = []
    for _ in range(LATE):
        late = Reader(context, publisher)
        while not late.told_at:
            time.sleep(0.0005)
        joined.append(late.seconds_until(present))
        late.end()
    publisher.close()
    context.destroy(linger=0)
    return lags, median(joined)


def shown(name: str, lags: Sequence[float], joined: float) -> str:
    return (
        f"{name}: {len(lags)} times equal, after {median(lags) * 1e3:.1f} ms (median),"
        f" {quantiles(lags, n=100, method='inclusive')[98] * 1e3:.1f} (p99), {max(lags) * 1e3:.1f} at most;"
        f" who joins late, after {joined * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=2)
    args = parser.parse_args()
    print(shown(f"KV events, {args.events} changes", *lags_of_a_reader(args.events)), flush=True)
    lags, joined = lags_of_the_front(args.replicas, args.events)
    print(shown(f"the front, {CountingRouter.num_events} changes", lags, joined))


if __name__ == "__main__":
    main()
