"""Replicas of the bundled model on this machine, beside what cluster_simulation.py says of the same requests."""

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple, TypeVar

from simulated_cluster import (
    EngineSizes,
    InTurn,
    SimulatedCluster,
    SimulatedEngine,
    SimulatedRequest,
    StepSeconds,
    hit_rate,
)

from pellucid.benchmark.load.traffic import Lengths, Traffic
from pellucid.benchmark.measured_speed import MeasuredRun, MeasuredSpeed
from pellucid.benchmark.planned_model import find_planned_model, measure_this_machine
from pellucid.benchmark.step_work import Step, StepWork, model_work, steps_of
from pellucid.benchmark.workloads import Prefill
from pellucid.cluster import dispatcher
from pellucid.cluster.replica_pool import ReplicaPool, plan_replica
from pellucid.cluster.router import Router
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_without_weights

Result = TypeVar("Result")

CONFIG = EngineConfig(num_threads=1, num_kv_blocks=200, speculation="off")
REQUESTS, CONCURRENCY, PREFIXES = 40, 4, 5  # for each replica
PREFIX_TOKENS, PROMPTS, OUTPUTS = 600, Lengths(20, 120), Lengths(20, 60)
# What speeds are fitted to: lengths of prompts; how many requests decode at a time, after how many tokens.
PREFILLS = (40, 320, 1200)
DECODES = ((1, 40), (4, 40), (8, 40), (2, 1000))
DECODE_TOKENS, ROUNDS = 24, 2


class Figures(NamedTuple):
    """Of a run: the share of prompts that was found, medians in seconds, and seconds of all requests."""

    hit_rate: float
    first_token: float
    token: float
    all: float


class Pool:
    """Replicas that are running, and a thread to talk to them."""

    def __init__(self, num_replicas: int, router: type[Router]) -> None:
        dispatcher.Router = router  # type: ignore[misc]
        model = load_without_weights(CONFIG)
        self.plan = plan_replica(CONFIG, num_replicas, model)
        self._num_replicas = num_replicas
        self._vocab_size = model.config.vocab_size
        self._pool = ReplicaPool.of_processes(CONFIG, model, self.plan, num_replicas)
        self._loop = asyncio.new_event_loop()
        self._rng = random.Random(num_replicas)

    def close(self) -> None:
        self._do(self._pool.shutdown())
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)

    # ---- speeds

    def short_runs(self, work: StepWork) -> list[MeasuredRun]:
        """Steps while all replicas compute, with the messages of front and replicas."""
        runs = []
        for length in PREFILLS:
            seconds = median(
                each.first_token_seconds
                for _ in range(ROUNDS)
                for each in self._at_once(1, length, 1)
            )
            steps = steps_of(Prefill(length), CONFIG.max_num_batched_tokens)
            runs.append(MeasuredRun("bundled", f"prefill {length}", seconds, work.of(steps)))
        for batch, depth in DECODES:
            seconds = median(
                each.token_seconds or 0.0
                for _ in range(ROUNDS)
                for each in self._at_once(batch, depth, DECODE_TOKENS)
            )
            position = depth + DECODE_TOKENS // 2
            steps = [Step(position, position + 1, batch)]
            runs.append(MeasuredRun("bundled", f"{batch} after {depth}", seconds, work.of(steps)))
        return runs

    def _at_once(self, batch: int, num_tokens: int, num_outputs: int) -> list[SimulatedRequest]:
        """So many requests for each replica that have nothing in common."""
        requests = [
            SimulatedRequest(self.tokens(self._rng, num_tokens), num_outputs)
            for _ in range(batch * self._num_replicas)
        ]
        self.run(requests, len(requests))
        return requests

    # ---- requests

    def tokens(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(self._vocab_size // 2, self._vocab_size), k=count))

    def traffic(self, seed: int) -> list[SimulatedRequest]:
        traffic = Traffic(
            REQUESTS * self._num_replicas,
            PROMPTS,
            OUTPUTS,
            prefix_tokens=PREFIX_TOKENS,
            num_prefixes=PREFIXES * self._num_replicas,
            seed=seed,
        )
        prefixes = [
            self.tokens(random.Random(f"{seed} {number}"), PREFIX_TOKENS)
            for number in range(traffic.num_prefixes)
        ]
        rng = random.Random(seed)
        return [
            SimulatedRequest(
                prefixes[each.prefix] + self.tokens(rng, each.num_prompt_tokens),
                each.num_output_tokens,
            )
            for each in traffic.requests()
        ]

    def run(self, requests: Sequence[SimulatedRequest], concurrency: int) -> float:
        """Computes requests, so many at a time, and writes what becomes of them; returns the seconds it takes."""
        return self._do(self._run(requests, concurrency))

    async def _run(self, requests: Sequence[SimulatedRequest], concurrency: int) -> float:
        left, started = iter(requests), time.monotonic()

        async def send_one_after_the_other() -> None:
            for request in left:
                await self._send(request, started)

        await asyncio.gather(*(send_one_after_the_other() for _ in range(concurrency)))
        return time.monotonic() - started

    async def _send(self, request: SimulatedRequest, started: float) -> None:
        params = SamplingParams(
            temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True
        )
        request.due = time.monotonic() - started
        stream = await self._pool.add_request(list(request.prompt_token_ids), params)
        async for _ in stream:
            request.first_token_at = request.first_token_at or time.monotonic() - started
        request.ended_at = time.monotonic() - started
        request.num_cached_tokens = stream.output.num_cached_tokens or 0


def figures(requests: Sequence[SimulatedRequest], seconds: float) -> Figures:
    tokens = [each.token_seconds for each in requests if each.token_seconds is not None]
    first = median(each.first_token_seconds for each in requests)
    return Figures(hit_rate(requests), first, median(tokens), seconds)


def compare(num_replicas: int, router: type[Router], seed: int) -> tuple[Figures, Figures]:
    """Measured and simulated figures of the same requests."""
    planned = find_planned_model(None, CONFIG)
    work = model_work(CONFIG, planned.config, planned.weight_bytes)
    machine = measure_this_machine(planned)
    pool = Pool(num_replicas, router)
    try:
        # Before and after, since other work on the machine comes and goes.
        runs = pool.short_runs(work)
        requests = pool.traffic(seed)
        measured = figures(requests, pool.run(requests, CONCURRENCY * num_replicas))
        runs += pool.short_runs(work)
    finally:
        pool.close()
    speed = MeasuredSpeed(
        machine.bandwidth_bytes_per_second, machine.flops_per_second, runs
    ).seconds_by_kind()
    memory = pool.plan.memory
    sizes = EngineSizes(
        memory.num_blocks,
        CONFIG.block_size,
        CONFIG.max_num_seqs,
        CONFIG.max_num_batched_tokens,
        memory.block_needs.windows,
    )
    engines = [SimulatedEngine(sizes, StepSeconds([work], speed)) for _ in range(num_replicas)]
    cluster = SimulatedCluster(router(CONFIG.block_size), engines, CONFIG.block_size)
    simulated = [replace(each, first_token_at=0.0, num_cached_tokens=0) for each in requests]
    return measured, figures(simulated, cluster.run(simulated, CONCURRENCY * num_replicas))


def print_errors(counts: Sequence[int], seed: int) -> None:
    print("replicas  router  figure                measured  simulated   error")
    for num_replicas in counts:
        for name, router in (("prefix", Router), ("turns", InTurn)):
            measured, simulated = compare(num_replicas, router, seed)
            for figure, one, other in zip(
                ("hit rate", "first token p50, ms", "a token p50, ms", "all requests, s"),
                measured,
                simulated,
                strict=True,
            ):
                unit = 1e3 if figure.endswith("ms") else 1.0
                print(
                    f"{num_replicas:8}  {name:6}  {figure:20}  {one * unit:8.3f}  {other * unit:9.3f}"
                    f"  {other / one - 1:+6.1%}",
                    flush=True,
                )
