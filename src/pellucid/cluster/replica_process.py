"""The front's side of one replica: its process, and the messages from and to it."""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from pellucid.cluster.channel import Channel
from pellucid.cluster.messages import (
    Alive,
    Answer,
    Ask,
    CannotStart,
    FromReplica,
    Ready,
    Start,
    Stop,
    ToReplica,
    decode_from_replica,
    encode,
)

_log = logging.getLogger("pellucid.cluster")

STOP_SECONDS = 10.0  # in which a replica that is to end does so


class ReplicaProcess:
    """A process that runs one engine. Its methods belong to one event loop.

    Args:
        number: of the replica in its pool.
        start: what the process is told first.
        on_message: called with each message but those that are about the process itself.
        on_end: called once, when the process has ended, whatever the reason.

    Attributes:
        ready: what the engine said when it was loaded; None: it is being loaded.
        refusal: why the engine could not be loaded.
        stalled_since: since when no step has ended while there are requests, by the event loop's clock.
    """

    def __init__(
        self,
        number: int,
        start: Start,
        on_message: Callable[["ReplicaProcess", FromReplica], None],
        on_end: Callable[["ReplicaProcess"], None],
    ) -> None:
        self.number = number
        self.ready: Ready | None = None
        self.refusal: str | None = None
        self.stalled_since: float | None = None
        self._start = start
        self._on_message = on_message
        self._on_end = on_end
        self._unsent: list[ToReplica] = []
        self._answers: dict[int, asyncio.Future[Answer | None]] = {}
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes]
        self._channel: Channel

    async def begin(self) -> None:
        """Starts the process, which loads its engine from now on."""
        own, others = socket.socketpair()
        with others:
            # A session of its own: a signal from the terminal ends the front alone, which then ends the replicas.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pellucid.cluster.replica", str(others.fileno())],
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
        """Whether somebody else has ended the process, of one that has ended."""
        return self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM)

    @property
    def is_ready(self) -> bool:
        return self.ready is not None and self._task is not None and not self._task.done()

    def send(self, message: ToReplica) -> None:
        """Sends a message, in one frame with the others of this turn of the event loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(message)

    async def ask(self, *, with_blocks: bool = False) -> Answer | None:
        """The state of the engine; None: it has ended."""
        if not self.is_ready:
            return None
        number = max(self._answers, default=0) + 1
        self._answers[number] = self._loop.create_future()
        self.send(Ask(number, with_blocks))
        try:
            return await self._answers[number]
        finally:
            del self._answers[number]

    async def stop(self) -> None:
        """Ends the process: at its own pace at first."""
        if self._task is None:
            return
        self.send(Stop())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), STOP_SECONDS)
        self.kill()
        await self._task

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        self._channel.send(encode(messages))

    async def _listen(self) -> None:
        async for frame in self._channel.frames():
            for message in decode_from_replica(frame):
                self._take(message)
        await self._channel.drain()
        try:  # it ends by itself, so its status tells why
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            await asyncio.to_thread(self._process.wait)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)
        self._on_end(self)

    def _take(self, message: FromReplica) -> None:
        if isinstance(message, Alive):
            self.stalled_since = self._loop.time() - message.seconds_without_step
        elif isinstance(message, Answer):
            answer = self._answers.get(message.number)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif isinstance(message, CannotStart):
            self.refusal = message.error
        else:
            if isinstance(message, Ready):
                self.ready = message
            self._on_message(self, message)
