"""ReplicaPool: engines in processes of their own, to the server like one `AsyncLLMEngine`."""

import asyncio
import contextlib
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, final

from pellucid.async_engine import (
    DEFAULT_MAX_REQUESTS,
    MAX_IDS_IN_PLACE,
    AsyncTokenStream,
    EngineStoppedError,
    TextThreads,
    TooManyRequestsError,
)
from pellucid.benchmark.planned_model import PlannedModel, find_planned_model
from pellucid.cluster.block_labels import prompt_labels
from pellucid.cluster.dispatcher import Dispatcher
from pellucid.cluster.local_replicas import LocalReplicas
from pellucid.cluster.messages import Answer, Start
from pellucid.cluster.replica_source import ReplicaSource
from pellucid.cluster.request_on_replica import RequestOnReplica
from pellucid.engine.request_maker import SEED_BITS, PreparedRequest, RequestMaker
from pellucid.facts.cores import core_shares, own_cpus
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.parameter_checks import Interval
from pellucid.inputs.prompts import EncodedPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import ModelWithoutWeights
from pellucid.memory.engine_plan import EnginePlan, plan_engine
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Snapshot, SnapshotRequest
from pellucid.outputs import KVCacheUsage, SpeculationStatistics

Result = TypeVar("Result")

MAX_REPLICAS = 64


@dataclass(frozen=True)
class PoolIdentity:
    """What the bits of all replicas depend on, as each replica has said."""

    own_facts: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        return dict(self.own_facts)


@dataclass(frozen=True)
class ReplicaFacts:
    """A replica at one moment.

    Attributes:
        is_ready: requests are sent to it.
        num_requests: unfinished.
    """

    number: int
    pid: int
    is_ready: bool
    num_requests: int


def plan_replica(config: EngineConfig, num_replicas: int, model: ModelWithoutWeights) -> EnginePlan:
    """Plans the memory of each replica: an equal share of what there is now.

    Args:
        config: of one replica.

    Raises:
        ValueError: a share is too small.
    """
    planned = _planned(config, model)
    memory = planned.models.model.backend.available_memory()
    if memory is None:
        return plan_engine(config, planned.models, None)
    share = memory // num_replicas - planned.weight_bytes
    if share <= 0:
        raise ValueError(
            f"replicas={num_replicas}: each has {memory // num_replicas / 2**30:.2f} GiB of the memory that is"
            f" free, and the weights alone take {planned.weight_bytes / 2**30:.2f} GiB"
        )
    return plan_engine(config, planned.models, share)


def plan_replica_of_stages(config: EngineConfig, model: ModelWithoutWeights) -> EnginePlan:
    """Plans a replica whose first layers stages compute: with as many blocks as `config` asks for, since nobody
    has asked the machines of the stages yet. Each of them checks its part when it loads.

    Raises:
        ValueError: `config` does not say how many.
    """
    if config.num_kv_blocks is None and config.kv_cache_memory is None:
        raise ValueError(
            f"stages={config.stages!r}: with replicas, kv_cache_memory or num_kv_blocks says how large the KV cache of"
            " each replica is, on all of its machines together"
        )
    return plan_without_memory(config, model)


def plan_without_memory(config: EngineConfig, model: ModelWithoutWeights) -> EnginePlan:
    """Plans an engine of a machine that is not known: with as many blocks as `config` asks for."""
    return plan_engine(config, _planned(config, model).models, None)


def _planned(config: EngineConfig, model: ModelWithoutWeights) -> PlannedModel:
    path = None if config.model is None else str(model.path)
    return find_planned_model(None, replace(config, model=path, revision=None))


@final
class ReplicaPool:
    """Runs requests on several engines. What a caller sees does not depend on which engine computes what, and a request
    whose engine ends goes on in another one.

    A thread runs the event loop that talks to the processes.

    Args:
        config: of each engine.
        model: the checkpoint that `config` names.
        plan: of the memory of an engine.
        make_source: makes what brings the replicas, on the pool's event loop.
        max_requests: most unfinished requests.

    Attributes:
        events: events about requests, from all replicas.

    Raises:
        ValueError: a replica cannot be started.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: ModelWithoutWeights,
        plan: EnginePlan,
        make_source: Callable[[], ReplicaSource],
        max_requests: int = DEFAULT_MAX_REQUESTS,
    ) -> None:
        self.config = config
        self.model_config = model.config
        self.model_name = model.name
        self.model_file_format = model.file_format
        self.plan = plan
        self.memory_plan = plan.memory
        self.max_model_len = plan.memory.max_model_len
        self.default_sampling_params = model.default_sampling_params
        self.tokenizer = model.tokenizer
        self.events = EventBus(time.monotonic)
        self._max_requests = max_requests
        self._num_requests = 0
        self._lock = threading.Lock()
        self._maker = RequestMaker(model.config, model.tokenizer, self.max_model_len)
        self._texts = TextThreads(max_waiting=max_requests)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pellucid-replicas", daemon=True
        )
        self._thread.start()
        self._stop_once = weakref.finalize(self, _end_loop, self._loop, self._thread)
        self._dispatcher, self._source = self._wait(self._make_parts(make_source))
        try:
            self._wait(self._source.begin(self._dispatcher))
        except BaseException:
            self._wait(self._stop_parts())
            self._stop_once()
            self._texts.stop()
            raise

    @classmethod
    def of_processes(
        cls,
        config: EngineConfig,
        model: ModelWithoutWeights,
        plan: EnginePlan,
        num_replicas: int,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        stages: Sequence[str] = (),
    ) -> "ReplicaPool":
        """A pool of processes on this machine, with a share of its cores each.

        Args:
            plan: of the memory of each engine: `plan_replica`, or `plan_replica_of_stages`.
            stages: of each replica, as `EngineConfig.stages`; empty: there are none.
        """
        check_num_replicas(num_replicas)
        own_stages: Sequence[str | None] = stages or [None] * num_replicas
        configs = [
            replace(config, num_kv_blocks=plan.memory.num_blocks, stages=own) for own in own_stages
        ]
        starts = [
            Start(own, max_requests, sorted(cores))
            for own, cores in zip(configs, core_shares(own_cpus(), num_replicas), strict=True)
        ]
        return cls(config, model, plan, lambda: LocalReplicas(starts), max_requests)

    # ---- what a server does with an engine

    @property
    def identity(self) -> PoolIdentity:
        """Of all replicas."""
        assert self._dispatcher.identity is not None
        return PoolIdentity(self._dispatcher.identity)

    async def encode(self, prompt: Prompt) -> EncodedPrompt:
        """As `AsyncLLMEngine.encode`."""
        if isinstance(prompt, list | tuple) and len(prompt) <= MAX_IDS_IN_PLACE:
            return self._maker.encode(prompt, time.monotonic)
        return await self._texts.run(partial(self._maker.encode, prompt, time.monotonic))

    async def prepare(
        self, prompt: Prompt | EncodedPrompt, params: SamplingParams
    ) -> PreparedRequest:
        """As `AsyncLLMEngine.prepare`: bad requests reach no replica, which prepares the others again."""
        prepare = partial(self._maker.prepare, prompt, params, time.monotonic)
        if self._maker.preparing_takes_time(prompt, params):
            return await self._texts.run(prepare)
        return prepare()

    async def add_request(
        self,
        prompt: Prompt | EncodedPrompt | PreparedRequest,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        continues: tuple[str, int] | None = None,
        caller: str = "",
        caller_weight: float = 1.0,
    ) -> AsyncTokenStream:
        """As `AsyncLLMEngine.add_request`.

        Raises:
            ValueError: `continues` is given: the completion may be on another replica.
        """
        if continues is not None:
            raise ValueError("continues: needs one engine, and these are replicas")
        self._admit()
        try:
            if not isinstance(prompt, PreparedRequest):
                prompt = await self.prepare(prompt, params or self.default_sampling_params)
            request = self._request(prompt, request_id, priority, cache_salt, caller, caller_weight)
        except BaseException:
            self._give_up()
            raise
        request.stream.start(request.output)
        request.stream.when_ended(self._give_up)
        try:
            await self._call(self._dispatcher.add(request))
        except BaseException:
            self.abort(request.request_id)
            if not request.stream.has_all_deltas:
                request.stream.end()
            raise
        return request.stream

    def abort(self, request_id: str) -> None:
        """As `AsyncLLMEngine.abort`."""
        with contextlib.suppress(RuntimeError):  # the pool has been shut down
            self._loop.call_soon_threadsafe(self._dispatcher.abort, request_id)

    async def kv_cache_usage(self) -> KVCacheUsage:
        """The blocks of all replicas together."""
        usages = [answer.usage for answer in (await self.answers()).values()]
        return KVCacheUsage(
            num_blocks=max(1, sum(usage[0] for usage in usages)),
            num_used_blocks=sum(usage[1] for usage in usages),
            num_cached_blocks=sum(usage[2] for usage in usages),
        )

    async def speculation(self) -> SpeculationStatistics | None:
        """The counters of drafts of all replicas together, since each of them has started."""
        found = [
            SpeculationStatistics(**answer.speculation)
            for answer in (await self.answers()).values()
            if answer.speculation is not None
        ]
        if not found:
            return None
        most = max(len(each.right_by_position) for each in found)
        return SpeculationStatistics(
            num_rounds=sum(each.num_rounds for each in found),
            num_drafts=sum(each.num_drafts for each in found),
            num_right=sum(each.num_right for each in found),
            right_by_position=[
                sum(
                    each.right_by_position[place]
                    for each in found
                    if place < len(each.right_by_position)
                )
                for place in range(most)
            ],
            seconds=sum(each.seconds for each in found),
            won_seconds=sum(each.won_seconds for each in found),
            reason=found[0].reason,
        )

    async def snapshot(self, with_tokens: bool = False) -> Snapshot:
        """The unfinished requests. Blocks belong to one engine: they are counted, and not named."""
        usage = await self.kv_cache_usage()
        requests = await self._call(self._seen(with_tokens))
        return Snapshot(
            self.events.last_seq,
            requests,
            (),
            usage.num_used_blocks,
            usage.num_cached_blocks,
            usage.num_blocks - usage.num_used_blocks - usage.num_cached_blocks,
        )

    async def shutdown(self, *, drain: bool = False) -> None:
        """Refuses new requests from now on; returns when all processes have ended.

        Args:
            drain: wait until the unfinished requests have ended; otherwise they are aborted.
        """
        self._max_requests = 0
        while drain and self._num_requests and self._dispatcher.is_alive:
            await asyncio.sleep(0.05)
        if self._thread.is_alive():
            await self._call(self._stop_parts())
            await asyncio.to_thread(self._stop_once)
        await asyncio.to_thread(self._texts.stop)

    @property
    def is_healthy(self) -> bool:
        """Whether requests are taken: a replica is there, or will be."""
        return self._dispatcher.is_alive and not self._dispatcher.is_stopping

    @property
    def seconds_without_step(self) -> float:
        """Seconds since the last step of the replica that has been at it for longest; 0 without requests."""
        now, router = time.monotonic(), self._dispatcher.router
        return max(
            (
                now - process.stalled_since
                for process in self._source.links
                if process.stalled_since is not None
                and process.number in router.replicas
                and router.num_requests(process.number)
            ),
            default=0.0,
        )

    @property
    def num_compute_threads(self) -> int | None:
        """Of all replicas together, as each has said at its start."""
        threads = [each.ready.num_threads for each in self._source.links if each.ready is not None]
        known = [num for num in threads if num is not None]
        return sum(known) if known else None

    # ---- what only a pool has

    @property
    def replicas(self) -> list[ReplicaFacts]:
        """The replicas now."""
        router = self._dispatcher.router
        return [
            ReplicaFacts(
                each.number,
                each.pid,
                each.number in router.replicas,
                router.num_requests(each.number) if each.number in router.replicas else 0,
            )
            for each in self._source.links
        ]

    @property
    def num_restarts(self) -> int:
        """Processes that were started in place of one that had ended."""
        return self._source.num_restarts

    @property
    def num_failovers(self) -> int:
        """Requests that went on in another replica than the one that began them."""
        return self._dispatcher.num_failovers

    async def answers(self, *, with_blocks: bool = False) -> dict[int, Answer]:
        """The states of the replicas that are ready, by number.

        Args:
            with_blocks: with the labels of all blocks that can be found.
        """

        async def ask() -> dict[int, Answer]:
            links = self._source.links
            answers = await asyncio.gather(*(each.ask(with_blocks=with_blocks) for each in links))
            return {
                link.number: answer
                for link, answer in zip(links, answers, strict=True)
                if answer is not None
            }

        return await self._call(ask())

    async def routed_blocks(self) -> dict[int, set[int]]:
        """Which blocks the router takes each replica to have, by number: labels."""

        async def copy() -> dict[int, set[int]]:
            router = self._dispatcher.router
            return {number: set(router.blocks(number)) for number in router.replicas}

        return await self._call(copy())

    # ----

    def _request(
        self,
        prepared: PreparedRequest,
        request_id: str | None,
        priority: int,
        cache_salt: str | None,
        caller: str,
        caller_weight: float,
    ) -> RequestOnReplica:
        name = secrets.token_hex(8) if request_id is None else request_id
        # Raises what an engine would raise
        self._maker.make(name, prepared, priority, cache_salt, caller, caller_weight)
        params, prompt = prepared.params, prepared.prompt
        assert isinstance(params, SamplingParams)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(SEED_BITS))
        salt = self._maker.salt(cache_salt, len(prompt.token_ids))
        return RequestOnReplica(
            name,
            prompt,
            params,
            AsyncTokenStream(lambda stream: self.abort(name)),
            priority,
            cache_salt,
            caller,
            caller_weight,
            prompt_labels(prompt.token_ids, self.config.block_size, salt),
        )

    def _admit(self) -> None:
        with self._lock:
            if not self.is_healthy:
                raise EngineStoppedError("the replicas were shut down")
            if self._num_requests >= self._max_requests:
                raise TooManyRequestsError(f"{self._num_requests} requests are unfinished")
            self._num_requests += 1

    def _give_up(self) -> None:
        with self._lock:
            self._num_requests -= 1

    async def _seen(self, with_tokens: bool) -> tuple[SnapshotRequest, ...]:
        return tuple(
            SnapshotRequest(
                req=f"{request.request_id}/{completion.index}",
                state=_state(request, bool(completion.token_ids)),
                prompt_tok=len(request.prompt.token_ids),
                out_tok=len(completion.token_ids),
                computed_tok=0 if not completion.token_ids else request.num_tokens - 1,
                prio=request.priority,
                blocks=(),
                prompt_ids=request.prompt.token_ids if with_tokens else None,
                output_ids=tuple(completion.token_ids) if with_tokens else None,
            )
            for request in self._dispatcher.requests.values()
            for completion in request.output.outputs
            if completion.finish_reason is None
        )

    async def _make_parts(
        self, make_source: Callable[[], ReplicaSource]
    ) -> tuple[Dispatcher, ReplicaSource]:
        block_size = self.config.block_size
        required = {"model": self.model_config.digest, "block_size": block_size}
        return Dispatcher(block_size, self.events, required), make_source()

    async def _stop_parts(self) -> None:
        self._dispatcher.stop()
        await self._source.stop()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs work on the pool's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """As `_wait`, for a task of another event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def check_num_replicas(num_replicas: int) -> int:
    """Raises a ValueError if there cannot be so many."""
    return Interval(1, MAX_REPLICAS).integer("replicas", num_replicas)


def _state(request: RequestOnReplica, has_tokens: bool) -> Any:
    if request.output.metrics.first_scheduled_time is None:
        return "waiting"
    return "decode" if has_tokens else "prefill"


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
