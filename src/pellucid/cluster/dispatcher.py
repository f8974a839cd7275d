"""The dispatcher: sends requests to replicas, hands their deltas on, and sends what a replica loses to another one."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from pellucid.async_engine import AsyncTokenStream, EngineStoppedError
from pellucid.cluster.messages import (
    Abort,
    Added,
    Answer,
    BlocksChanged,
    Delta,
    Emitted,
    FromReplica,
    Progress,
    Ready,
    Refused,
    Start,
)
from pellucid.cluster.replica_process import ReplicaProcess
from pellucid.cluster.request_on_replica import MAX_CRASHES, RequestOnReplica
from pellucid.cluster.router import Router
from pellucid.engine.async_stream import call_soon
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Event, Hello, RequestAdded

_log = logging.getLogger("pellucid.cluster")

MAX_FAILED_STARTS = 3  # of a replica in a row; then it is not started any more
_EVENTS = {event.ev: event for event in Event.__subclasses__()}


class Dispatcher:
    """Owns the replicas of a pool and its unfinished requests. All methods belong to one event loop.

    Args:
        starts: what each replica is told first.
        events: gets the replicas' events about requests.

    Attributes:
        router: what each replica has.
        identity: of all replicas; None: none is ready yet.
        requests: unfinished, by id.
        num_restarts: processes that were started after another one had ended.
        num_failovers: requests that went on in another replica.
        is_stopping: no process is started any more.
    """

    def __init__(self, starts: Sequence[Start], events: EventBus) -> None:
        self.router = Router(starts[0].config.block_size)
        self.identity: dict[str, object] | None = None
        self.requests: dict[str, RequestOnReplica] = {}
        self.num_restarts = self.num_failovers = 0
        self.is_stopping = False
        self._starts = starts
        self._events = events
        self._hellos: dict[int, Hello] = {}
        self._processes: dict[int, ReplicaProcess] = {}
        self._num_failed_starts = [0] * len(starts)
        self._waiting: dict[str, RequestOnReplica] = {}  # for a replica
        self._added: dict[str, asyncio.Future[None]] = {}
        self._unsent: list[tuple[AsyncTokenStream, Callable[[], None]]] = []
        self._has_changed = asyncio.Event()  # a replica is ready, or was given up
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- replicas

    async def begin(self) -> None:
        """Starts all replicas; returns when all are ready.

        Raises:
            ValueError: one of them cannot be used.
        """
        for number in range(len(self._starts)):
            await self._start(number)
        while len(self.router.replicas) < len(self._starts):
            refusals = [each.refusal for each in self._processes.values() if each.refusal]
            if refusals:
                raise ValueError(refusals[0])
            if not self.is_alive:
                raise ValueError("no replica could be started: see its messages above")
            self._has_changed.clear()
            await self._has_changed.wait()

    async def stop(self) -> None:
        """Aborts all requests, and ends all processes."""
        self.is_stopping = True
        self._fail_all(EngineStoppedError("the replicas were shut down"))
        await asyncio.gather(*(process.stop() for process in self._processes.values()))

    @property
    def processes(self) -> list[ReplicaProcess]:
        """In the order of their numbers."""
        return [*self._processes.values()]

    @property
    def is_alive(self) -> bool:
        """Whether a replica takes requests, or will."""
        return any(failed < MAX_FAILED_STARTS for failed in self._num_failed_starts)

    async def answers(self, *, with_blocks: bool = False) -> dict[int, Answer]:
        """The states of the replicas that are ready, by number."""
        processes = self.processes
        answers = await asyncio.gather(*(each.ask(with_blocks=with_blocks) for each in processes))
        return {
            process.number: answer
            for process, answer in zip(processes, answers, strict=True)
            if answer is not None
        }

    async def _start(self, number: int) -> None:
        process = ReplicaProcess(number, self._starts[number], self._take, self._lose)
        self._processes[number] = process
        await process.begin()

    def _join(self, process: ReplicaProcess, ready: Ready) -> None:
        """Takes a replica into the pool, and gives it the requests that wait."""
        if self.identity is None:
            self.identity = ready.identity
        if (other := difference(self.identity, ready.identity)) is not None:
            process.refusal = f"replica {process.number} is refused: {other}"
            process.kill()
            return
        self._num_failed_starts[process.number] = 0
        self.router.join(process.number)
        self._has_changed.set()
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            self._send(request)

    def _lose(self, process: ReplicaProcess) -> None:
        """A process has ended: others go on with its requests, and another process takes its place."""
        number = process.number
        self._hellos.pop(number, None)
        if number in self.router.replicas:
            self.router.leave(number)
        else:
            self._num_failed_starts[number] += 1
        if self.is_stopping:
            return
        if process.refusal is not None:
            self._num_failed_starts[number] = MAX_FAILED_STARTS
        for request in [each for each in self.requests.values() if each.replica == number]:
            request.lose_replica(was_killed=process.was_killed)
            self.num_failovers += 1
            self._go_on(request)
        if self._num_failed_starts[number] < MAX_FAILED_STARTS:
            _log.warning(
                "replica %d (process %d) has ended; another one is started", number, process.pid
            )
            self.num_restarts += 1
            self._spawn(number)
        else:
            reason = process.refusal or "it has ended three times while it was loading"
            _log.error("replica %d is not started any more: %s", number, reason)
            self._has_changed.set()
            if not self.is_alive:
                self._fail_all(EngineStoppedError(f"no replica is left: {reason}"))

    def _spawn(self, number: int) -> None:
        task = asyncio.create_task(self._start(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- requests

    async def add(self, request: RequestOnReplica) -> None:
        """Sends a request to a replica. While none is ready, it waits for one.

        Raises:
            ValueError: the engine refuses it.
            EngineStoppedError: there is no replica any more.
        """
        if self.is_stopping or not self.is_alive:
            raise EngineStoppedError("there is no replica any more")
        if request.request_id in self.requests:
            name = request.request_id
            raise ValueError(f"request_id={name!r}: is the id of an unfinished request")
        self.requests[request.request_id] = request
        self._send(request)
        if request.replica is None:
            return
        added = self._added[request.request_id] = self._loop.create_future()
        await added

    def abort(self, request_id: str) -> None:
        """Ends a request: by its replica, after the current step. Ignores unknown ids."""
        if (request := self.requests.get(request_id)) is None:
            return
        request.is_aborted = True
        if request.replica is None:
            self._end(request, "abort")
        else:
            self._processes[request.replica].send(Abort(request_id))

    def _send(self, request: RequestOnReplica) -> None:
        if not self.router.replicas:
            self._waiting[request.request_id] = request
            return
        placement = self.router.place(request.request_id, request.keys, request.num_tokens)
        process = self._processes[placement.replica]
        if self.router.num_requests(process.number) == 1:  # until now it had no step to do
            process.stalled_since = self._loop.time()
        request.replica = process.number
        process.send(request.message())

    def _go_on(self, request: RequestOnReplica) -> None:
        """Sends a request whose replica has ended to another one, unless it is to end."""
        if request.is_aborted:
            self._end(request, "abort")
        elif request.num_crashes >= MAX_CRASHES:
            crashed = f"{request.num_crashes} replicas have crashed while they computed it"
            self._end(request, "error", crashed)
        else:
            self._send(request)

    def _end(self, request: RequestOnReplica, reason: str, stop_reason: str | None = None) -> None:
        for delta in request.end(reason, stop_reason):
            self._deliver(request.stream, partial(request.stream.receive, delta))
        self._forget(request)
        self._deliver(request.stream, request.stream.end)

    def _forget(self, request: RequestOnReplica) -> None:
        self.requests.pop(request.request_id, None)
        self._waiting.pop(request.request_id, None)
        self.router.ended(request.request_id)
        request.output.metrics.finished_time = time.monotonic()
        self._resolve(request.request_id)

    def _resolve(self, request_id: str, error: Exception | None = None) -> None:
        """Tells the task that waits whether a replica has taken a request."""
        if (added := self._added.pop(request_id, None)) is not None and not added.done():
            if error is None:
                added.set_result(None)
            else:
                added.set_exception(error)

    def _fail_all(self, error: EngineStoppedError) -> None:
        for request in [*self.requests.values()]:
            self._resolve(request.request_id, error)
            self._forget(request)
            self._deliver(request.stream, partial(request.stream.end, error))

    # ---- what replicas say

    def _take(self, process: ReplicaProcess, message: FromReplica) -> None:
        number = process.number
        if isinstance(message, BlocksChanged):
            for block, is_added in message.changes:
                (self.router.added if is_added else self.router.removed)(number, block)
        elif isinstance(message, Ready):
            self._join(process, message)
        elif isinstance(message, Emitted):
            self._hear(number, message)
        elif isinstance(message, Added | Refused | Delta | Progress):
            request = self.requests.get(message.request_id)
            if request is not None and request.replica == number:
                self._follow(request, message)

    def _follow(
        self, request: RequestOnReplica, message: Added | Refused | Delta | Progress
    ) -> None:
        """What a replica says of a request of its own."""
        if isinstance(message, Delta):
            delta = request.take(message, time.monotonic())
            self.router.computed(request.request_id)
            self._deliver(request.stream, partial(request.stream.receive, delta))
        elif isinstance(message, Added):
            self._resolve(request.request_id)
        elif isinstance(message, Progress):
            request.note(message)
            if message.has_ended:
                self._forget(request)
                self._deliver(request.stream, request.stream.end)
        elif request.request_id in self._added:
            self._resolve(request.request_id, ValueError(message.error))
            self._forget(request)
        else:  # it was taken by another replica, which has ended
            self._end(request, "error", message.error)

    def _hear(self, number: int, emitted: Emitted) -> None:
        """Hands an event of a replica on: about requests as it is, about engines for all together."""
        event = msgspec.convert(emitted.fields, _EVENTS[emitted.name])
        if isinstance(event, Hello):
            self._hellos[number] = event
            self._events.introduce(together([*self._hellos.values()]))
        elif self._events.active:
            if isinstance(event, RequestAdded):  # its time and number are those of that process
                request = self.requests.get(event.req.partition("/")[0])
                arrival_time = time.monotonic() if request is None else request.prompt.arrival_time
                event = replace(event, arrive_us=self._events.to_us(arrival_time), num=None)
            self._events.emit(event)

    def _deliver(self, stream: AsyncTokenStream, call: Callable[[], None]) -> None:
        """Calls on the event loop of a stream, with the other calls of this turn."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append((stream, call))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = defaultdict(list)
        for stream, call in unsent:
            by_loop[stream.loop].append(call)
        for loop, calls in by_loop.items():
            if not call_soon(loop, partial(_call_all, calls)):
                for request in [*self.requests.values()]:  # no task reads these
                    if request.stream.loop is loop:
                        self.abort(request.request_id)


def difference(identity: dict[str, object], other: dict[str, object]) -> str | None:
    """In what another engine differs from those of a pool; None: it gives the same bits."""
    names = [name for name in identity if name != "identity" and identity[name] != other.get(name)]
    if not names:
        return None
    parts = ", ".join(f"{name} {other.get(name)!r} instead of {identity[name]!r}" for name in names)
    return f"its answers could differ from those of the others: it has {parts}"


def together(hellos: Sequence[Hello]) -> Hello:
    """Describes all replicas as one engine: their blocks and threads together."""
    first = hellos[0]
    threads = [hello.device.threads for hello in hellos]
    return replace(
        first,
        kv=replace(first.kv, n_blocks=sum(hello.kv.n_blocks for hello in hellos)),
        device=replace(
            first.device,
            threads=None if None in threads else sum(filter(None, threads)),
        ),
        limits=replace(first.limits, max_seqs=sum(hello.limits.max_seqs for hello in hellos)),
    )


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
