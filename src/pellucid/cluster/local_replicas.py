"""Replicas in processes of this machine: a process that ends is replaced by another one."""

import asyncio
import logging
from collections.abc import Sequence

from msgspec import structs

from pellucid.cluster.dispatcher import Dispatcher
from pellucid.cluster.messages import FromReplica, Start
from pellucid.cluster.replica_link import ReplicaLink
from pellucid.cluster.replica_process import ReplicaProcess
from pellucid.cluster.replica_source import ReplicaSource

_log = logging.getLogger("pellucid.cluster")

MAX_FAILED_STARTS = 3  # of a replica in a row; then it is not started any more


class LocalReplicas(ReplicaSource):
    """Starts a process for each replica, and another one when it ends.

    Args:
        starts: what each replica is told first.
    """

    def __init__(self, starts: Sequence[Start]) -> None:
        self._starts = [*starts]
        self._processes: dict[int, ReplicaProcess] = {}
        self._num_failed_starts = [0] * len(starts)
        self._num_restarts = 0
        self._has_changed = asyncio.Event()  # a replica is ready, or was given up
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatcher: Dispatcher

    async def begin(self, dispatcher: Dispatcher) -> None:
        """Starts all replicas; returns when all are ready."""
        self._dispatcher = dispatcher
        for number in range(len(self._starts)):
            await self._start(number)
        while len(dispatcher.router.replicas) < len(self._starts):
            refusals = [each.refusal for each in self._processes.values() if each.refusal]
            if refusals:
                raise ValueError(refusals[0])
            if not self._is_alive:
                raise ValueError("no replica could be started: see its messages above")
            self._has_changed.clear()
            await self._has_changed.wait()

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes.values()))

    @property
    def links(self) -> list[ReplicaLink]:
        return [*self._processes.values()]

    @property
    def num_restarts(self) -> int:
        return self._num_restarts

    @property
    def _is_alive(self) -> bool:
        return any(failed < MAX_FAILED_STARTS for failed in self._num_failed_starts)

    async def _start(self, number: int) -> None:
        process = ReplicaProcess(number, self._starts[number], self._take, self._lose)
        self._processes[number] = process
        await process.begin()

    def _take(self, link: ReplicaLink, message: FromReplica) -> None:
        self._dispatcher.take(link, message)
        if link.ready is message and link.number in self._dispatcher.router.replicas:
            self._num_failed_starts[link.number] = 0
            self._has_changed.set()

    def _lose(self, process: ReplicaProcess) -> None:
        """A process has ended: another one takes its place."""
        number = process.number
        if number not in self._dispatcher.router.replicas:
            self._num_failed_starts[number] += 1
        self._dispatcher.lose(process)
        if self._dispatcher.is_stopping:
            return
        if process.refusal is not None:
            self._num_failed_starts[number] = MAX_FAILED_STARTS
        if self._num_failed_starts[number] < MAX_FAILED_STARTS:
            _log.warning(
                "replica %d (process %d) has ended; another one is started", number, process.pid
            )
            self._num_restarts += 1
            self._starts[number] = structs.replace(self._starts[number], waits_for_stages=True)
            task = asyncio.create_task(self._start(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            reason = process.refusal or "it has ended three times while it was loading"
            _log.error("replica %d is not started any more: %s", number, reason)
            self._has_changed.set()
            if not self._is_alive:
                self._dispatcher.give_up(f"no replica is left: {reason}")
