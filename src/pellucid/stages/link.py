"""The engine's side of a stage: its connection, what was asked of it, and how it comes back."""

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from pellucid import __version__
from pellucid.backends.base import BlocksLostError
from pellucid.inputs.stage_address import StageAddress
from pellucid.stages.messages import (
    Alive,
    Failed,
    FromStage,
    Hello,
    Prepared,
    ToStage,
    decode_from_stage,
    encode,
)
from pellucid.stages.wire import Wire, WireError, shake_hands

_log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0  # each side says this often that it is there
SILENCE_SECONDS = 4.0  # after which a stage that says nothing has gone
LOADING_SILENCE_SECONDS = (
    60.0  # likewise, while it loads: a busy machine may not run its threads for long
)
CONNECT_SECONDS = 4.0
RETRY_SECONDS = 1.0

Reply = TypeVar("Reply", bound=FromStage)


class StageAwayError(ValueError):
    """Nobody is at a stage's address, or somebody with another key or version."""


class StageLink:
    """A stage that computes for this engine. A thread reads its replies, and brings it back when it has gone.

    Args:
        address: of the stage.
        key: the secret of all processes of an engine.
        name: for people; left out, it has the address.

    Raises:
        StageAwayError: nobody is there, or somebody with another key or version.
    """

    def __init__(self, address: StageAddress, key: bytes, name: str | None = None) -> None:
        self.address = address
        self.name = name or f"stage {address}"
        self._key = key
        self._set_up: list[tuple[ToStage, Future[FromStage]]] = []
        self._pending: deque[Future[FromStage]] = deque()
        self._order = threading.Lock()  # of messages, and of the futures of their replies
        self._loss: BlocksLostError | None = None  # not yet told
        self._reason = ""
        self._is_closed = threading.Event()
        self._on_loss: Callable[[], None] | None = None
        try:
            self._wire: Wire | None = self._connect()
        except OSError as error:
            raise StageAwayError(f"stages: {address}: {_why(error)}") from None
        self._thread = threading.Thread(
            target=self._run, args=(self._wire,), name=f"pellucid-stage-{address}", daemon=True
        )
        self._thread.start()

    def ask(self, message: ToStage) -> "Future[FromStage]":
        """Sends a message. The future has its reply, or the error: `BlocksLostError` if the stage has gone,
        RuntimeError if it cannot do what was asked for."""
        future: Future[FromStage] = Future()
        frame = encode(message)
        with self._order:
            if self._wire is None:
                future.set_exception(self._lost())
                return future
            self._pending.append(future)
            wire = self._wire
            try:
                wire.send(frame)
            except OSError:
                wire.close()  # the reader notices, and ends what is pending
        return future

    def set_up(self, message: ToStage) -> "Future[FromStage]":
        """As `ask`, for what a stage that comes back is told again before anything else."""
        future = self.ask(message)
        self._set_up.append((message, future))
        return future

    def watch(self) -> None:
        """Everything is loaded: from now on a stage is lost by `SILENCE_SECONDS` without a sign of life."""
        with self._order:
            if self._wire is not None:
                self._wire.limit_silence(SILENCE_SECONDS)

    @property
    def is_there(self) -> bool:
        """Whether the stage can be asked."""
        return self._wire is not None

    def take_loss(self) -> BlocksLostError | None:
        """Why the stage's blocks are gone; None: they are as they were at the last call."""
        loss, self._loss = self._loss, None
        return loss

    def when_lost(self, on_loss: Callable[[], None]) -> None:
        """Calls `on_loss` when the stage has gone, on the thread that reads from it, before anything that was asked of
        the stage fails; at once if it has gone already."""
        self._on_loss = on_loss
        if not self.is_there:
            on_loss()

    def close(self) -> None:
        """Ends the connection: the stage waits for another engine then."""
        self._is_closed.set()
        with self._order:
            wire = self._wire
        if wire is not None:
            wire.close()
        self._thread.join()

    def _lost(self) -> BlocksLostError:
        return BlocksLostError(f"{self.name} is away: {self._reason}")

    def _connect(self) -> Wire:
        end = socket.create_connection(self.address[:2], CONNECT_SECONDS)
        end.settimeout(SILENCE_SECONDS)
        try:
            wire = shake_hands(end, self._key, is_engine=True)
            hello = decode_from_stage(wire.receive())
            wire.limit_silence(LOADING_SILENCE_SECONDS)
        except TimeoutError:
            end.close()
            raise WireError("it does not answer; it may compute for another engine") from None
        except (OSError, ValueError) as error:
            end.close()
            raise WireError(str(error)) from None
        if not isinstance(hello, Hello) or hello.version != __version__:
            wire.close()
            raise WireError(f"it says {hello}, and this is pellucid {__version__}")
        # Shows the key at once: what an engine asks for may have to wait for the digests of its files.
        wire.send(encode(Alive()))
        return wire

    def _run(self, wire: Wire) -> None:
        while True:
            self._lose(self._read_until_lost(wire))
            while not self._is_closed.wait(RETRY_SECONDS):
                try:
                    wire = self._come_back()
                except OSError as error:
                    if (reason := _why(error)) != self._reason:
                        self._reason = reason
                        _log.warning("%s: %s", self.name, reason)
                    continue
                _log.warning("%s is back", self.name)
                break
            if self._is_closed.is_set():
                return

    def _read_until_lost(self, wire: Wire) -> str:
        """Hands replies to those who asked for them. Returns why it ended."""
        try:
            while True:
                reply = decode_from_stage(wire.receive())
                if isinstance(reply, Alive):
                    wire.send(encode(Alive()))
                elif not self._pending:
                    return f"it says {type(reply).__name__}, and nobody has asked"
                else:
                    self._settle(self._pending.popleft(), reply)
        except TimeoutError:
            return f"it has said nothing for {wire.silence_seconds:.0f} seconds"
        except (OSError, ValueError) as error:
            return _why(error)

    def _settle(self, future: "Future[FromStage]", reply: FromStage) -> None:
        if isinstance(reply, Failed):
            future.set_exception(RuntimeError(f"{self.name}: {reply.error}"))
        else:
            future.set_result(reply)

    def _lose(self, reason: str) -> None:
        """Ends what was asked for, and forgets the connection."""
        assert self._wire is not None
        if self._on_loss is not None and not self._is_closed.is_set():
            self._on_loss()
        self._wire.close()
        with self._order:
            self._wire, self._reason = None, reason
            pending = list(self._pending)
            self._pending.clear()
            self._loss = self._lost()
        if not self._is_closed.is_set():
            _log.warning("%s is away: %s", self.name, reason)
        for future in pending:
            future.set_exception(self._lost())

    def _come_back(self) -> Wire:
        """Connects, and has the stage load what it had loaded."""
        wire = self._connect()
        try:
            for message, before in self._set_up:
                wire.send(encode(message))
                reply = _next_reply(wire)
                if isinstance(reply, Failed):
                    raise WireError(reply.error)
                if isinstance(reply, Prepared):
                    wanted = reply_of(before, Prepared).identity
                    check_identity("after it came back", reply.identity, wanted)
        except (OSError, ValueError) as error:
            wire.close()
            raise WireError(_why(error)) from None
        with self._order:
            if self._is_closed.is_set():
                wire.close()
                raise WireError("the engine ends")
            wire.limit_silence(SILENCE_SECONDS)
            self._wire = wire
        return wire


def check_identity(who: str, found: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Compares what the bits of answers depend on.

    Args:
        who: what an error calls the stage.

    Raises:
        ValueError: something differs; says what.
    """
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        pairs = ", ".join(
            f"{name} is {found.get(name)!r} there and {wanted[name]!r} here"
            for name in different
            if name != "identity"
        )
        raise ValueError(f"{who}: it would give other bits: {pairs}")


def reply_of(future: "Future[FromStage]", kind: type[Reply]) -> Reply:
    """Waits for a reply of a kind. Raises as `StageLink.ask` says."""
    reply = future.result()
    assert isinstance(reply, kind)
    return reply


def ask_all(
    links: Sequence[StageLink], message: Callable[[int], ToStage]
) -> "list[Future[FromStage]]":
    """Asks all stages at once, each for `message` of its number."""
    return [link.ask(message(number)) for number, link in enumerate(links)]


def _next_reply(wire: Wire) -> FromStage:
    while isinstance(reply := decode_from_stage(wire.receive()), Alive):
        wire.send(encode(Alive()))
    return reply


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
