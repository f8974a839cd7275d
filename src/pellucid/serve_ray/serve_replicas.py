"""The replicas that Ray Serve keeps, as a front sees them: a conversation with each of them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from pellucid.cluster.dispatcher import Dispatcher
from pellucid.cluster.messages import FromReplica, Ready, decode_from_replica
from pellucid.cluster.replica_link import ReplicaLink
from pellucid.cluster.replica_source import ReplicaSource
from pellucid.serve_ray.destinations import KnownReplica, NewReplica

_log = logging.getLogger("pellucid.cluster")

# Between frames to a replica, of which it gets an empty one if there is nothing to say.
SIGN_OF_LIFE_SECONDS = 10.0
# After a conversation that could not begin, and between looks at a replica that is to end.
PAUSE_SECONDS = 0.5


class ServeLink(ReplicaLink):
    """A conversation with a replica: frames come as items of a stream, and go as calls, one after the other.

    Args:
        number, on_message: as in `ReplicaLink`.
        name: of the replica, by Ray.
        pid: of its process.
        conversation: its id.
        engines: Ray's handle of the deployment.
        frames: Ray's stream of lists of frames.
        on_end: called once, when the conversation has ended, whatever the reason.

    Attributes:
        is_retiring: Ray will end the replica, or has ended it.
        is_lost: the conversation has ended, and not by this side.
    """

    def __init__(
        self,
        number: int,
        name: str,
        pid: int,
        conversation: str,
        engines: Any,
        frames: Any,
        on_message: Callable[[ReplicaLink, FromReplica], None],
        on_end: Callable[["ServeLink"], None],
    ) -> None:
        super().__init__(number, on_message)
        self.name = name
        self.is_retiring = self.is_lost = False
        self._pid = pid
        self._conversation = conversation
        self._engines = engines
        self._frames = frames
        self._on_end = on_end
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def was_killed(self) -> bool:
        """Ray does not say what ended a process."""
        return False

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        _log.error("replica %s gets no requests: %s", self.name, reason)

    def _transmit(self, frame: bytes) -> None:
        self._outgoing.put_nowait(frame)

    async def _run(self) -> None:
        sides = [asyncio.create_task(self._listen()), asyncio.create_task(self._speak())]
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            self.is_lost = True
            if (error := done.pop().exception()) is not None:
                _log.warning("replica %s has ended: %s", self.name, type(error).__name__)
        finally:
            for side in sides:
                side.cancel()
            self._frames.cancel()
            self._answer_nothing()
            self._on_end(self)
            await asyncio.gather(*sides, return_exceptions=True)

    async def _listen(self) -> None:
        async for frames in self._frames:
            for frame in frames:
                for message in decode_from_replica(frame):
                    if isinstance(message, Ready):
                        self.clock_lead = time.monotonic() - message.now
                    self._take(message)

    async def _speak(self) -> None:
        """Ends when the replica does not know the conversation any more."""
        destination = KnownReplica(self._conversation, self.name)
        is_known = True
        while is_known:
            try:
                frame = await asyncio.wait_for(self._outgoing.get(), SIGN_OF_LIFE_SECONDS)
            except asyncio.TimeoutError:
                frame = b""
            is_known = await self._engines.tell.remote(destination, frame)


class ServeReplicas(ReplicaSource):
    """Begins a conversation with each replica that Ray starts.

    A call that begins one waits in Ray's router for a replica that this front does not know.

    Args:
        engines: Ray's handle of the deployment of engines.
    """

    def __init__(self, engines: Any) -> None:
        self._engines = engines
        self._links: dict[int, ServeLink] = {}
        self._known: frozenset[str] = frozenset()  # names; also read by Ray's thread
        self._num_begun = self._num_lost = 0
        self._loop = asyncio.get_running_loop()
        self._has_joined = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatcher: Dispatcher

    async def begin(self, dispatcher: Dispatcher) -> None:
        """Returns when the first replica is ready."""
        self._dispatcher = dispatcher
        self._spawn(self._find_replicas())
        await self._has_joined.wait()

    async def stop(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*(link.stop() for link in [*self._links.values()]))

    @property
    def links(self) -> list[ReplicaLink]:
        return [*self._links.values()]

    @property
    def num_restarts(self) -> int:
        """Replicas that have ended before their last request; Ray starts others."""
        return self._num_lost

    async def _find_replicas(self) -> None:
        while True:
            conversation = secrets.token_hex(8)
            destination = NewReplica(conversation, self._unknown)
            frames = self._engines.options(stream=True).converse.remote(destination)
            try:
                name, pid = await frames.__anext__()
            except asyncio.CancelledError:
                frames.cancel()
                raise
            except Exception as error:  # whatever became of that replica: another one will come
                _log.warning("a replica has ended before it was ready: %s", type(error).__name__)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            link = ServeLink(
                self._num_begun,
                name.decode(),
                int(pid),
                conversation,
                self._engines,
                frames,
                self._take,
                self._lose,
            )
            self._num_begun += 1
            self._links[link.number] = link
            self._note_known()

    def _unknown(self, names: frozenset[str]) -> set[str]:
        """Those of the replicas there are now with which no conversation has begun. On Ray's thread."""
        self._loop.call_soon_threadsafe(self._retire_others, names)
        return {*names - self._known}

    def _retire_others(self, names: frozenset[str]) -> None:
        for link in [*self._links.values()]:
            if link.name not in names and not link.is_retiring:
                link.is_retiring = True
                self._dispatcher.retire(link)
                self._spawn(self._let_end(link))

    async def _let_end(self, link: ServeLink) -> None:
        """Ends a conversation after the last of its requests; Ray waits for that."""
        while any(each.replica == link.number for each in self._dispatcher.requests.values()):
            await asyncio.sleep(PAUSE_SECONDS)
        await link.stop()

    def _take(self, link: ReplicaLink, message: FromReplica) -> None:
        self._dispatcher.take(link, message)
        if self._dispatcher.router.replicas:
            self._has_joined.set()

    def _lose(self, link: ServeLink) -> None:
        del self._links[link.number]
        self._note_known()
        self._num_lost += link.is_lost and not self._dispatcher.is_stopping
        self._dispatcher.lose(link)

    def _note_known(self) -> None:
        self._known = frozenset(link.name for link in self._links.values())

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
