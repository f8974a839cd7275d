"""The dispatcher: sends requests to replicas, hands their deltas on, and sends what a replica loses to another one."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from pellucid.async_engine import AsyncTokenStream, EngineStoppedError
from pellucid.cluster.messages import (
    Abort,
    Added,
    BlocksChanged,
    Delta,
    Emitted,
    FromReplica,
    OtherFronts,
    Progress,
    Ready,
    Refused,
)
from pellucid.cluster.replica_link import ReplicaLink
from pellucid.cluster.request_on_replica import MAX_CRASHES, RequestOnReplica
from pellucid.cluster.router import Router
from pellucid.engine.async_stream import call_soon
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Event, Hello, RequestAdded

_EVENTS = {event.ev: event for event in Event.__subclasses__()}


class Dispatcher:
    """Owns the unfinished requests of a pool. All methods belong to one event loop.

    Args:
        block_size: tokens in a block.
        events: gets the replicas' events about requests.
        required: facts of identities that every replica must have: the front has them, too.

    Attributes:
        router: the replicas that get requests, and what each of them has.
        identity: of these replicas; None: there has been none yet.
        requests: unfinished, by id.
        num_failovers: requests that went on in another replica.
        is_stopping: the pool ends.
    """

    def __init__(
        self, block_size: int, events: EventBus, required: Mapping[str, object] | None = None
    ) -> None:
        self.router = Router(block_size)
        self.identity: dict[str, object] | None = None
        self.requests: dict[str, RequestOnReplica] = {}
        self.num_failovers = 0
        self.is_stopping = False
        self._events = events
        self._required = required or {}
        self._hellos: dict[int, Hello] = {}
        self._links: dict[int, ReplicaLink] = {}  # that have joined
        self._refused: dict[int, ReplicaLink] = {}
        self._waiting: dict[str, RequestOnReplica] = {}  # for a replica
        self._added: dict[str, asyncio.Future[None]] = {}
        self._unsent: list[tuple[AsyncTokenStream, Callable[[], None]]] = []
        self._why_given_up: str | None = None
        self._loop = asyncio.get_running_loop()

    # ---- replicas

    def stop(self) -> None:
        """Aborts all requests."""
        self.is_stopping = True
        self._fail_all("the replicas were shut down")

    def give_up(self, reason: str) -> None:
        """There is no replica any more, and none will come."""
        self._why_given_up = reason
        self._fail_all(reason)

    @property
    def is_alive(self) -> bool:
        """Whether a replica takes requests, or will."""
        return self._why_given_up is None

    def retire(self, link: ReplicaLink) -> None:
        """A replica is about to end: it answers the requests that it has, and gets no others."""
        self._refused.pop(link.number, None)
        if link.number in self.router.replicas:
            self.router.leave(link.number)
            self._let_others_in()

    def lose(self, link: ReplicaLink) -> None:
        """A replica has ended: others go on with its requests."""
        number = link.number
        self._hellos.pop(number, None)
        self._links.pop(number, None)
        self._refused.pop(number, None)
        if number in self.router.replicas:
            self.router.leave(number)
        if self.is_stopping:
            return
        self._let_others_in()
        for request in [each for each in self.requests.values() if each.replica == number]:
            request.lose_replica(was_killed=link.was_killed)
            self.num_failovers += 1
            self._go_on(request)

    def _join(self, link: ReplicaLink, ready: Ready) -> None:
        """Takes a replica into the pool, and gives it the requests that wait."""
        if (other := difference(self._required, ready.identity)) is not None:
            link.refuse(other)
            return
        if self.identity is None:
            self.identity = ready.identity
        if (other := difference(self.identity, ready.identity)) is not None:
            self._refused[link.number] = link
            link.refuse(other)
            return
        self._links[link.number] = link
        self.router.join(link.number)
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            self._go_on(request)

    def _let_others_in(self) -> None:
        """Once no replica gets requests any more, those of another identity may: after an update of all of them."""
        if not self.router.replicas and self._refused:
            self.identity = None
            refused, self._refused = self._refused, {}
            for link in refused.values():
                assert link.ready is not None
                link.refusal = None
                self._join(link, link.ready)

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
            self._links[request.replica].send(Abort(request_id))

    def _send(self, request: RequestOnReplica) -> None:
        if not self.router.replicas:
            self._waiting[request.request_id] = request
            return
        placement = self.router.place(request.request_id, request.keys, request.num_tokens)
        link = self._links[placement.replica]
        if self.router.num_requests(link.number) == 1:  # until now it had no step to do
            link.stalled_since = self._loop.time()
        request.replica, request.identity = link.number, self.identity
        link.send(request.message(link.clock_lead))

    def _go_on(self, request: RequestOnReplica) -> None:
        """Sends a request whose replica has ended to another one, unless it is to end."""
        if request.is_aborted:
            self._end(request, "abort")
        elif request.num_crashes >= MAX_CRASHES:
            crashed = f"{request.num_crashes} replicas have crashed while they computed it"
            self._end(request, "error", crashed)
        elif request.has_begun and self.router.replicas and request.identity != self.identity:
            self._end(request, "error", "only engines of another identity are left")
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

    def _fail_all(self, reason: str) -> None:
        error = EngineStoppedError(reason)
        for request in [*self.requests.values()]:
            self._resolve(request.request_id, error)
            self._forget(request)
            self._deliver(request.stream, partial(request.stream.end, error))

    # ---- what replicas say

    def take(self, link: ReplicaLink, message: FromReplica) -> None:
        """Obeys a message of a replica."""
        number = link.number
        if isinstance(message, BlocksChanged):
            if number in self.router.replicas:
                for block, is_added in message.changes:
                    (self.router.added if is_added else self.router.removed)(number, block)
        elif isinstance(message, OtherFronts):
            if number in self.router.replicas:
                self.router.shared(number, message.num_requests, message.num_tokens)
        elif isinstance(message, Ready):
            self._join(link, message)
        elif isinstance(message, Emitted):
            self._hear(number, message)
        elif isinstance(message, Added | Refused | Delta | Progress):
            request = self.requests.get(message.request_id)
            if request is not None and request.replica == number:
                self._follow(link, request, message)

    def _follow(
        self,
        link: ReplicaLink,
        request: RequestOnReplica,
        message: Added | Refused | Delta | Progress,
    ) -> None:
        """What a replica says of a request of its own."""
        if isinstance(message, Delta):
            delta = request.take(message, time.monotonic())
            self.router.computed(request.request_id)
            self._deliver(request.stream, partial(request.stream.receive, delta))
        elif isinstance(message, Added):
            self._resolve(request.request_id)
        elif isinstance(message, Progress):
            request.note(message, link.clock_lead)
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


def difference(identity: Mapping[str, object], other: Mapping[str, object]) -> str | None:
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
