"""The front's side of one replica, wherever the replica runs: messages to it and from it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from pellucid.cluster.messages import (
    Alive,
    Answer,
    Ask,
    CannotStart,
    FromReplica,
    Ready,
    ToReplica,
    encode,
)


class ReplicaLink(ABC):
    """A connection to a replica. Its methods belong to one event loop.

    Args:
        number: of the replica in its pool.
        on_message: called with each message but those that are about the connection itself.

    Attributes:
        ready: what the engine said when it was loaded; None: it is being loaded.
        refusal: why the engine cannot be used.
        clock_lead: seconds by which the front's clock is ahead of the replica's, whose machine may have another one.
        stalled_since: since when no step has ended while there are requests, by the event loop's clock.
    """

    def __init__(
        self, number: int, on_message: Callable[["ReplicaLink", FromReplica], None]
    ) -> None:
        self.number = number
        self.ready: Ready | None = None
        self.refusal: str | None = None
        self.clock_lead = 0.0
        self.stalled_since: float | None = None
        self._on_message = on_message
        self._unsent: list[ToReplica] = []
        self._answers: dict[int, asyncio.Future[Answer | None]] = {}
        self._loop = asyncio.get_running_loop()

    @property
    @abstractmethod
    def pid(self) -> int:
        """Of the replica's process, on its machine."""

    @property
    @abstractmethod
    def was_killed(self) -> bool:
        """Whether somebody else has ended the replica, of one that has ended."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether messages arrive."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends the connection, and the replica if it belongs to the pool alone."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """The replica does not get requests."""

    @abstractmethod
    def _transmit(self, frame: bytes) -> None:
        """Sends a frame after those before it. Does not wait."""

    def send(self, message: ToReplica) -> None:
        """Sends a message, in one frame with the others of this turn of the event loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(message)

    async def ask(self, *, with_blocks: bool = False) -> Answer | None:
        """The state of the engine; None: it has ended."""
        if self.ready is None or not self.is_open:
            return None
        number = max(self._answers, default=0) + 1
        self._answers[number] = self._loop.create_future()
        self.send(Ask(number, with_blocks))
        try:
            return await self._answers[number]
        finally:
            del self._answers[number]

    def _take(self, message: FromReplica) -> None:
        """Obeys a message of the replica."""
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

    def _answer_nothing(self) -> None:
        """The connection has ended: nobody answers."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        self._transmit(encode(messages))
