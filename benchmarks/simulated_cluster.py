"""Engines that compute nothing, behind the router of replicas: schedulers, prefix indexes and evictions are those of
real engines, and a step takes as long as the planner's formulas say.
"""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol

from pellucid.benchmark.measured_speed import SecondsByKind, predicted_seconds
from pellucid.benchmark.step_work import StepWork
from pellucid.cluster.block_labels import LABELLED_GROUP, label, prompt_labels
from pellucid.cluster.router import Placement, Router
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block import NO_SALT, BlockKey
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import SchedulerOutput
from pellucid.stages.messages import ROWS_TOGETHER

ANSWER_TOKEN = 0
Positions = tuple[int, int]  # of a request in a step: start, end


# -- time ------------------------------------------------------------------------------------------


class Boundary(NamedTuple):
    """What lies between two stages.

    Attributes:
        seconds: of a message to a stage and of its reply, without rows.
        row_seconds: of a row of hidden numbers, once over the network.
    """

    seconds: float
    row_seconds: float


SAME_MACHINE = Boundary(0.0, 0.0)


class StepTimes(Protocol):
    """When steps end.

    Attributes:
        num_stages: machines that compute a step one after the other.
    """

    @property
    def num_stages(self) -> int: ...

    def end(self, batch: Sequence[Positions], now: float, free_at: list[float]) -> float:
        """When a step ends that begins now and computes these positions of some requests.

        Args:
            free_at: when each machine has computed all steps before; the step is added.
        """


class StepSeconds:
    """As `StepTimes`, by the work of each machine.

    Args:
        parts: the work of each stage, in the order of layers; one: there are no stages.
        speed: of each machine.
        boundary: between two stages.
    """

    def __init__(
        self, parts: Sequence[StepWork], speed: SecondsByKind, boundary: Boundary = SAME_MACHINE
    ) -> None:
        self.num_stages = len(parts)
        self._parts = [_PartSeconds(part, speed) for part in parts]
        self._boundary = boundary

    def end(self, batch: Sequence[Positions], now: float, free_at: list[float]) -> float:
        """Stages compute pieces of `ROWS_TOGETHER` rows one after the other, and different pieces at the same time. The
        engine has the last stage, and passes rows on between the others.
        """
        pieces = [batch] if self.num_stages == 1 else cut_into_pieces(batch, ROWS_TOGETHER)
        for piece in pieces:
            num_rows = sum(end - start for start, end in piece)
            ready_at = now
            for number, part in enumerate(self._parts):
                ready_at = free_at[number] = max(ready_at, free_at[number]) + part(piece)
                num_sent = 1 if number == self.num_stages - 2 else 2
                ready_at += self._boundary.seconds
                ready_at += num_sent * num_rows * self._boundary.row_seconds
        return free_at[-1]


class _PartSeconds:
    """How long a stage computes."""

    def __init__(self, work: StepWork, speed: SecondsByKind) -> None:
        self._of_tokens = cache(
            lambda tokens, requests: predicted_seconds(speed, work.of_tokens(tokens, requests))
        )
        self._of_context = cache(
            lambda start, end: predicted_seconds(speed, work.of_context(start, end))
        )

    def __call__(self, batch: Sequence[Positions]) -> float:
        num_tokens = sum(end - start for start, end in batch)
        return self._of_tokens(num_tokens, len(batch)) + sum(
            self._of_context(start, end) for start, end in batch
        )


def cut_into_pieces(batch: Iterable[Positions], num_rows: int) -> list[list[Positions]]:
    """Pieces of so many rows, the last one of fewer."""
    pieces: list[list[Positions]] = []
    room = 0
    for start, end in batch:
        while start < end:
            if not room:
                pieces.append([])
                room = num_rows
            stop = min(end, start + room)
            pieces[-1].append((start, stop))
            room -= stop - start
            start = stop
    return pieces


# -- an engine -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineSizes:
    """Of the scheduler and of the cache, as `EngineConfig` and `EnginePlan` have them.

    Attributes:
        windows: of each group of layers.
    """

    num_blocks: int
    block_size: int = 32
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    windows: tuple[int | None, ...] = (None,)


class StepEnd(NamedTuple):
    """What a step has done.

    Attributes:
        first_tokens: the requests that have their first token now.
        ended: the requests that have ended.
        block_changes: labels of blocks in the prefix index, and whether each has come or gone.
    """

    first_tokens: Sequence[Request]
    ended: Sequence[Request]
    block_changes: Sequence[tuple[int, bool]]


class SimulatedEngine:
    """The scheduler and the cache manager of an engine, for requests that end by length. As in `EngineCore`, up to as
    many steps are under way as there are stages, and no step begins while the engine computes the last layers of one.

    Args:
        times: of steps.
    """

    def __init__(self, sizes: EngineSizes, times: StepTimes) -> None:
        self._times = times
        self._free_at = [0.0] * times.num_stages
        self._manager = KVCacheManager(
            BlockPool(sizes.num_blocks),
            sizes.block_size,
            windows=sizes.windows,
            max_chunk=sizes.max_num_batched_tokens,
        )
        self._manager.block_pool.index.listener = self
        self._scheduler = Scheduler(
            self._manager,
            EventBus(),
            sizes.max_num_seqs,
            sizes.max_num_batched_tokens,
            max_steps=times.num_stages,
        )
        self._block_changes: list[tuple[int, bool]] = []
        self._under_way: deque[SchedulerOutput] = deque()

    @property
    def is_computing(self) -> bool:
        return len(self._under_way) > 0

    def add(self, request: Request) -> None:
        """Queues a request, which the next step can compute.

        Raises:
            ValueError: it can never fit into the cache.
        """
        self._scheduler.add_request(request)

    def begin_steps(self, now: float) -> Iterator[float]:
        """Decides on as many steps as there may be; gives when each of them ends."""
        scheduler = self._scheduler
        if not self._under_way and not scheduler.has_unfinished_requests:
            return
        while not self._under_way or (
            len(self._under_way) < scheduler.max_steps and scheduler.has_work_beside
        ):
            output = scheduler.schedule(now)
            if not output.scheduled:
                assert self._under_way
                scheduler.withdraw(output)
                return
            self._under_way.append(output)
            batch = [(each.start, each.end) for each in output.scheduled]
            yield self._times.end(batch, now, self._free_at)

    def end_step(self, now: float) -> StepEnd:
        """Gives the requests of the step that began first their tokens."""
        output = self._under_way.popleft()
        requests = [
            self._scheduler.requests[name] for each in output.scheduled for name in each.samplers
        ]
        taken = {
            each.request_id: each.end_rule.take([ANSWER_TOKEN], each.num_output_tokens)
            for each in requests
        }
        self._scheduler.update(output, taken, now)
        self._manager.take_block_ops()
        changes, self._block_changes = self._block_changes, []
        first_tokens = [each for each in requests if each.num_output_tokens == 1]
        return StepEnd(first_tokens, self._scheduler.take_ended(), changes)

    # ---- the listener of the prefix index

    def added(self, key: BlockKey) -> None:
        self._change(key, True)

    def removed(self, key: BlockKey) -> None:
        self._change(key, False)

    def _change(self, key: BlockKey, is_added: bool) -> None:
        if key.group == LABELLED_GROUP:
            self._block_changes.append((label(key.block_hash), is_added))


# -- a cluster -------------------------------------------------------------------------------------


class InTurn(Router):
    """Sends requests to replicas in turn, whatever these have."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._numbers = itertools.count()

    def place(self, request_id: str, keys: Sequence[int], num_tokens: int) -> Placement:
        return Placement(next(self._numbers) % len(self.replicas), 0)


@dataclass
class SimulatedRequest:
    """A request, and what has become of it.

    Attributes:
        due: seconds after the start; of requests that wait for each other, when it was sent.
        replica: that it was sent to.
        num_cached_tokens: of its prompt, that the replica did not compute.
        first_token_at, ended_at: seconds after the start.
    """

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int
    due: float = 0.0
    replica: int = -1
    num_cached_tokens: int = 0
    first_token_at: float = 0.0
    ended_at: float = 0.0

    @property
    def first_token_seconds(self) -> float:
        return self.first_token_at - self.due

    @property
    def token_seconds(self) -> float | None:
        """Between two tokens of the answer, on average; None: it has one."""
        if self.num_output_tokens == 1:
            return None
        return (self.ended_at - self.first_token_at) / (self.num_output_tokens - 1)


@dataclass
class SimulatedCluster:
    """Replicas, and the front's router.

    Args:
        router: of the replicas, before one of them has joined.
        engines: replicas.
        block_size: of their caches.
        latency: seconds from the front to a replica, and back.

    Attributes:
        router_seconds: processor time that the router took for each request, with the hashes of its prompt.
    """

    router: Router
    engines: Sequence[SimulatedEngine]
    block_size: int
    latency: float = 0.0
    router_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._order = itertools.count()  # of events at the same time
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sent: dict[str, SimulatedRequest] = {}
        self._left: Iterator[SimulatedRequest] = iter(())
        self._is_closed_loop = False
        for number in range(len(self.engines)):
            self.router.join(number)

    def run(self, requests: Sequence[SimulatedRequest], concurrency: int | None = None) -> float:
        """Sends requests until all have ended; returns the seconds that this takes.

        Args:
            requests: in the order of `due`; the simulation writes what becomes of them.
            concurrency: a request follows when another one ends, so many at a time; None: each is sent when it is due.
        """
        self._left, self._is_closed_loop = iter(requests), concurrency is not None
        for request in itertools.islice(self._left, concurrency):
            self._at(request.due, lambda now, request=request: self._send(request, now))
        now = 0.0
        while self._events:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        return now

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _send(self, request: SimulatedRequest, now: float) -> None:
        request.due = now
        name = f"r{len(self._sent)}"
        started = time.thread_time()
        keys = prompt_labels(request.prompt_token_ids, self.block_size, NO_SALT)
        placed = self.router.place(name, keys, len(request.prompt_token_ids))
        self.router_seconds.append(time.thread_time() - started)
        request.replica = placed.replica
        self._sent[name] = request
        self._at(now + self.latency, lambda now: self._arrive(name, request, now))

    def _arrive(self, name: str, request: SimulatedRequest, now: float) -> None:
        engine = self.engines[request.replica]
        engine.add(
            Request(
                name,
                request.prompt_token_ids,
                SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True),
                seed=0,
                arrival_time=now,
                max_tokens=request.num_output_tokens,
            )
        )
        if not engine.is_computing:
            self._begin_steps(request.replica, now)

    def _begin_steps(self, number: int, now: float) -> None:
        for end in self.engines[number].begin_steps(now):
            self._at(end, lambda now: self._end_step(number, now))

    def _end_step(self, number: int, now: float) -> None:
        end = self.engines[number].end_step(now)
        self._at(now + self.latency, lambda now: self._hear(number, end, now))
        self._begin_steps(number, now)

    def _hear(self, number: int, end: StepEnd, now: float) -> None:
        """The front hears of a step."""
        for block, is_added in end.block_changes:
            (self.router.added if is_added else self.router.removed)(number, block)
        for each in end.first_tokens:
            self.router.computed(each.request_id)
            self._sent[each.request_id].first_token_at = now
        for each in end.ended:
            self.router.ended(each.request_id)
            request = self._sent[each.request_id]
            request.num_cached_tokens, request.ended_at = each.num_cached_tokens, now
            if self._is_closed_loop and (following := next(self._left, None)) is not None:
                self._send(following, now)


def hit_rate(requests: Sequence[SimulatedRequest]) -> float:
    """The share of the tokens of prompts that were not computed."""
    num_tokens = sum(len(each.prompt_token_ids) for each in requests)
    return sum(each.num_cached_tokens for each in requests) / num_tokens
