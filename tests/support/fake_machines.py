"""The fake model on several machines, each of which does what it is asked for when chance lets it."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pellucid.backends.base import StepLogits
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import BlockBytes, ForwardBatch, HostArray, IntArray, KVCache
from pellucid.facts.model_config import ModelConfig
from support.fake_model import FakeBackend, FakeDecoder, FakeKVCache


class Machine:
    """A machine other than the engine's: does what it is asked for in order, sooner or later."""

    def __init__(self) -> None:
        self._asked: deque[Callable[[], object]] = deque()

    def ask(self, action: Callable[[], object]) -> None:
        self._asked.append(action)

    def work(self, num_actions: int | None = None) -> None:
        """Does the next few actions; None: all."""
        while self._asked and num_actions != 0:
            self._asked.popleft()()
            num_actions = None if num_actions is None else num_actions - 1


class KVCacheOnMachines(FakeKVCache):
    """Each machine has a cache. Operations are done at once in the engine's, which is this one, and in turn elsewhere.
    What is read is the same on all machines."""

    def __init__(self, machines: Sequence[Machine], *sizes: int) -> None:
        super().__init__(*sizes)
        self.elsewhere = [FakeKVCache(*sizes) for _ in machines]
        self._machines = machines

    def _do(self, name: str, *arguments: object) -> None:
        for machine, cache in zip(self._machines, self.elsewhere, strict=True):
            machine.ask(lambda cache=cache: getattr(cache, name)(*arguments))
        getattr(super(), name)(*arguments)

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        self._do("copy_state", source_slot, target_slot)

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        self._do("copy_blocks", source_ids, target_ids)

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        self._do("write_blocks", block_ids, contents)

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        for machine in self._machines:
            machine.work()
        own = super().read_blocks(block_ids)
        for cache in self.elsewhere:
            assert np.array_equal(cache.read_blocks(block_ids), own)
        return own


@dataclass(eq=False)
class SentStep:
    """A step on its way: what its rows see on each machine but the engine's, so far."""

    seen: list[list[IntArray]] = field(default_factory=list)


class DecoderOnMachines(FakeDecoder):
    """Computes a step on one machine after the other, the engine's last, which all see the same tokens.

    Attributes:
        most_under_way: steps that were under way at the same time.
        backend: of this decoder.
    """

    def __init__(self, num_machines: int, seed: int) -> None:
        super().__init__()
        self.num_machines = num_machines
        self.most_under_way = 0
        self._num_under_way = 0
        self._rng = random.Random(seed)
        self._machines = [Machine() for _ in range(num_machines - 1)]
        self.backend = _Backend(self._machines)

    def send(self, batch: ForwardBatch, kv_cache: KVCache) -> ForwardBatch:
        assert isinstance(kv_cache, KVCacheOnMachines)
        self._num_under_way += 1
        self.most_under_way = max(self.most_under_way, self._num_under_way)
        step = SentStep()
        self._ask(batch, step, kv_cache)
        for machine in self._machines:
            machine.work(self._rng.choice([0, 0, 1, 2, 9]))
        return replace(batch, received=step)  # type: ignore[arg-type]

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        step = self._arrived(batch)
        assert isinstance(kv_cache, KVCacheOnMachines)
        own = kv_cache.store_and_read(batch)
        assert all(
            np.array_equal(here, there)
            for seen in step.seen
            for here, there in zip(own, seen, strict=True)
        )
        return StepLogits(self.logits(batch, own))

    def give_up(self, batch: ForwardBatch) -> None:
        self._arrived(batch)

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        raise AssertionError("steps are sent")

    def _ask(self, batch: ForwardBatch, step: SentStep, kv_cache: KVCacheOnMachines) -> None:
        number = len(step.seen)
        cache = kv_cache.elsewhere[number]

        def compute() -> None:
            step.seen.append(cache.store_and_read(batch))
            if len(step.seen) < len(self._machines):
                self._ask(batch, step, kv_cache)

        self._machines[number].ask(compute)

    def _arrived(self, batch: ForwardBatch) -> SentStep:
        """A step that all machines but the engine's have computed."""
        step = batch.received
        assert isinstance(step, SentStep)
        self._num_under_way -= 1
        while len(step.seen) < len(self._machines):
            self._machines[len(step.seen)].work(1)
        return step


class _Backend(FakeBackend):
    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines

    def make_kv_cache(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_state_slots: int = 1,
    ) -> FakeKVCache:
        one = super().make_kv_cache(config, 1, block_size, dtype)
        return KVCacheOnMachines(
            self._machines, num_blocks, block_size, num_state_slots, one.open.shape[2]
        )
