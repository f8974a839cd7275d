"""The front's side of one replica on this machine: its process, over a pair of sockets."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from pellucid.cluster.channel import Channel
from pellucid.cluster.messages import FromReplica, Start, Stop, decode_from_replica
from pellucid.cluster.replica_link import ReplicaLink

STAGE_LOST_STATUS = (
    75  # EX_TEMPFAIL: of a replica whose stage has gone, which says nothing of its requests
)
STOP_SECONDS = 10.0  # in which a replica that is to end does so


class ReplicaProcess(ReplicaLink):
    """A process that runs one engine.

    Args:
        number, on_message: as in `ReplicaLink`.
        start: what the process is told first.
        on_end: called once, when the process has ended, whatever the reason.
    """

    def __init__(
        self,
        number: int,
        start: Start,
        on_message: Callable[[ReplicaLink, FromReplica], None],
        on_end: Callable[["ReplicaProcess"], None],
    ) -> None:
        super().__init__(number, on_message)
        self._start = start
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes]
        self._channel: Channel

    async def begin(self) -> None:
        """Starts the process, which loads its engine from now on."""
        own, others = socket.socketpair()
        with others:
            # A session of its own: a signal from the terminal ends the front alone, which then ends the replicas.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pellucid.cluster.replica_main", str(others.fileno())],
                pass_fds=[others.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = await Channel.over(own)
        self.send(self._start)
        self._task = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def was_killed(self) -> bool:
        killed = -signal.SIGKILL, -signal.SIGTERM, STAGE_LOST_STATUS
        return self._process.returncode in killed

    @property
    def is_open(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Ends the process: at its own pace at first."""
        if self._task is None:
            return
        self.send(Stop())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), STOP_SECONDS)
        self._process.kill()
        await self._task

    def refuse(self, reason: str) -> None:
        """Ends the process at once: it was started for this pool."""
        self.refusal = f"replica {self.number} is refused: {reason}"
        self._process.kill()

    def _transmit(self, frame: bytes) -> None:
        self._channel.send(frame)

    async def _listen(self) -> None:
        async for frame in self._channel.frames():
            for message in decode_from_replica(frame):
                self._take(message)
        await self._channel.drain()
        try:  # it ends by itself, so its status tells why
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._answer_nothing()
        self._on_end(self)
