"""Runs workloads by the engine's own step (schedule, execute, update), without text."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends.ops import ForwardBatch, IntArray, KVCache, Ops
from pellucid.benchmark.kv_plan import plan_kv_cache
from pellucid.benchmark.measurement import Cost, Measurement
from pellucid.benchmark.workloads import Prefill, Workload
from pellucid.engine.engine_core import EngineCore, Judge
from pellucid.execution.model_runner import ModelRunner, StepResult
from pellucid.execution.sampler import Sampler
from pellucid.facts import formulas
from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.kv_groups import kv_groups
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel
from pellucid.memory.memory_plan import MemoryPlan
from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.open_keys import OpenSlots
from pellucid.scheduling.request import Request, Taken
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest
from pellucid.scheduling.state_pool import StatePool
from pellucid.speculation.speculation import make_speculation

NUM_WARM_UP_STEPS = 2  # of a decode; a prompt is run whole, for its scratch memory is its own
FILL_POSITIONS = 512  # stored at a time

OnRun = Callable[[int, int], None]  # (runs done, runs in all)


@dataclass(frozen=True)
class Run:
    """One run of a workload: its time, its steps, and the bytes of experts' weights that the steps read."""

    seconds: float
    steps: tuple[tuple[ScheduledRequest, ...], ...]
    expert_bytes: int


class Session:
    """A model with one KV cache for all workloads, filled with random keys and values: so a request at
    depth 8192 can be measured without computing 8192 tokens first.

    Args:
        engine_config: `block_size`, `kv_cache_dtype` and `max_num_batched_tokens` matter.
        workloads: all that will be measured, to plan the cache.
        clock: seconds, monotonic.

    Raises:
        ValueError: a workload does not fit, or the backend has no such format.
    """

    def __init__(
        self,
        model: LoadedModel,
        engine_config: EngineConfig,
        workloads: Sequence[Workload],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._config = engine_config
        self._clock = clock
        self._kv_plan = plan_kv_cache(workloads, engine_config, model.config, model.backend)
        block_size, dtype = engine_config.block_size, engine_config.kv_cache_dtype
        self._num_slots = max(workload.batch for workload in workloads)
        self._num_spares = self._num_slots if engine_config.speculation != "off" else 0
        self.kv_cache = model.backend.make_kv_cache(
            model.config,
            self._kv_plan.num_blocks,
            block_size,
            dtype,
            self._num_slots + self._num_spares,
        )
        _fill(model.backend.ops, self.kv_cache, model.config, self._kv_plan.num_blocks * block_size)
        self._events = EventBus(clock)  # without subscribers
        self._speculation = make_speculation(engine_config, model.config, clock, self._events)
        self._runner = ModelRunner(model.decoder, self.kv_cache, block_size, Sampler())

    def memory_plan(self) -> MemoryPlan:
        """The memory plan; the KV cache has the size that the largest workload needs."""
        return MemoryPlan(
            weights=self._model.weight_bytes,
            scratch=self._model.decoder.scratch_bytes(self._config.max_num_batched_tokens),
            bytes_per_block=self._kv_plan.bytes_per_block,
            num_blocks=self._kv_plan.num_blocks,
            block_needs=self._kv_plan.block_needs,
            max_model_len=self._model.config.context_length,
            margin=0,
            available=self._model.backend.available_memory(),
            decided_by="workloads",
            states=(self._num_slots + self._num_spares) * self.kv_cache.bytes_per_state,
        )

    def measure(
        self, workload: Workload, repetitions: int, on_run: OnRun | None = None
    ) -> Measurement:
        """Warms up, then runs `workload` `repetitions` times."""
        self.warm_up(workload)
        runs = []
        for number in range(repetitions):
            if on_run is not None:
                on_run(number, repetitions)
            runs.append(self.run(workload))
        return Measurement(
            workload,
            tuple(run.seconds for run in runs),
            self.cost(runs[0]),
            self._model.decoder.step_weights.arithmetic,
        )

    def warm_up(self, workload: Workload) -> None:
        """Runs first steps, so that the first measured run does not include allocations."""
        self.run(workload, NUM_WARM_UP_STEPS)

    def run(self, workload: Workload, max_steps: float = math.inf) -> Run:
        """Runs a workload once, on requests of its own."""
        requests = self._requests(workload)
        scheduler = self._scheduler(workload, requests)
        core = EngineCore(
            scheduler,
            self._runner,
            _Judge(requests),
            self._events,
            self._clock,
            speculation=self._speculation,
        )
        steps: list[tuple[ScheduledRequest, ...]] = []
        expert_bytes = 0
        start = self._clock()
        while scheduler.has_unfinished_requests and len(steps) < max_steps:
            step = core.step()
            steps.append(step.scheduled)
            expert_bytes += step.expert_bytes
        return Run(self._clock() - start, tuple(steps), expert_bytes)

    def cost(self, run: Run) -> Cost:
        """The bytes and operations of the steps of a run."""
        config = self._model.config
        kv_bytes = formulas.KVBytes(config, self.memory_plan().bytes_per_position)
        num_bytes, flops = float(run.expert_bytes), 0
        for step in run.steps:
            num_bytes += self._model.decoder.step_weights.num_bytes(
                any(scheduled.samplers for scheduled in step)
            )
            for scheduled in step:
                start, end = scheduled.start, scheduled.end
                num_bytes += kv_bytes(start, end)
                flops += formulas.forward_flops(config, start, end, scheduled.num_logits)
        return Cost(len(run.steps), round(num_bytes), flops)

    def _scheduler(self, workload: Workload, requests: Sequence[Request]) -> Scheduler:
        """A scheduler with the requests of `workload` at their depth."""
        prompt_length = workload.num_prompt_tokens
        is_prefill = isinstance(workload, Prefill)
        budget = (
            self._config.max_num_batched_tokens
            if is_prefill
            else workload.batch * max(prompt_length, 1 + self._config.num_draft_tokens)
        )
        state_pool = open_slots = None
        group_positions = find_kv_format(self._config.kv_cache_dtype).open_positions
        if self._model.config.states:
            state_pool = StatePool(self._num_slots, num_spares=self._num_spares)
        elif group_positions:
            open_slots = OpenSlots(self._num_slots, group_positions)
        scheduler = Scheduler(
            KVCacheManager(
                BlockPool(self._kv_plan.num_blocks),
                self._config.block_size,
                enable_prefix_caching=False,
                windows=self._kv_plan.block_needs.windows,
                max_chunk=budget,
                state_pool=state_pool,
                open_slots=open_slots,
            ),
            self._events,
            max_num_seqs=workload.batch,
            max_num_batched_tokens=budget,
        )
        for request in requests:
            scheduler.add_request(request)
        if workload.depth:  # what prefill would have stored is there
            output = scheduler.schedule(now=0.0)
            self._runner.follow(output)
            assert all(scheduled.samplers for scheduled in output.scheduled)
            taken = {request.request_id: Taken([0]) for request in requests}
            scheduler.update(output, taken, now=0.0)
        return scheduler

    def _requests(self, workload: Workload) -> list[Request]:
        """The requests of `workload`, with random prompts."""
        prompt_length = workload.num_prompt_tokens
        max_tokens = workload.num_positions - prompt_length + 1
        params = SamplingParams(
            temperature=workload.temperature,
            top_p=workload.top_p,
            max_tokens=max_tokens,
            ignore_eos=True,
        )
        rng = np.random.default_rng(0)
        vocab_size = self._model.config.vocab_size
        return [
            Request(
                request_id=f"{workload.test}/{index}",
                prompt_token_ids=tuple(rng.integers(0, vocab_size, prompt_length).tolist()),
                params=params,
                seed=index,
                arrival_time=0.0,
                max_tokens=max_tokens,
            )
            for index in range(workload.batch)
        ]


class _Judge(Judge):
    """Requests take tokens up to `max_tokens`. An error ends the run."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = {request.request_id: request for request in requests}

    def take(self, result: StepResult, now: float) -> Mapping[str, Taken]:
        for error in result.errors.values():
            raise error
        taken: dict[str, Taken] = {}
        for request_id, token_ids in result.token_ids.items():
            request = self._requests[request_id]
            taken[request_id] = request.end_rule.take(token_ids, request.num_output_tokens)
        return taken


def _fill(ops: Ops, kv_cache: KVCache, config: ModelConfig, num_slots: int) -> None:
    """Stores random keys and values in every slot of every layer that has its own."""
    rng = np.random.default_rng(0)
    num_groups = len(kv_groups(config))
    for layer, kv_layer in zip(config.layers, kv_cache.layers, strict=True):
        attention = layer.attention
        if attention is None or attention.shared_kv_layer is not None:
            continue
        shape = (FILL_POSITIONS, attention.num_kv_heads, attention.head_dim)
        k, v = (ops.from_host(rng.standard_normal(shape, np.float32)) for _ in range(2))
        for start in range(0, num_slots, FILL_POSITIONS):
            slots = np.arange(start, min(start + FILL_POSITIONS, num_slots), dtype=np.int64)
            batch = _batch_of_one(np.tile(slots, (num_groups, 1)))
            ops.store_kv(kv_layer, k[: len(slots)], v[: len(slots)], batch)


def _batch_of_one(slot_mapping: IntArray) -> ForwardBatch:
    """A request whose first tokens go into these slots [G, T]."""
    num_groups, num_tokens = slot_mapping.shape
    positions, first = np.arange(num_tokens), np.zeros(1, np.int64)
    return ForwardBatch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=positions,
        rope_lens=positions + 1,
        slot_mapping=slot_mapping,
        query_start=np.array([0, num_tokens]),
        seq_lens=np.array([num_tokens]),
        # As many columns as blocks of any size need; storing reads none of them.
        block_tables=np.zeros((num_groups, 1, num_tokens), np.int64),
        logits_indices=first,
        state_slots=first,
    )
