"""A stage: waits for an engine, and computes its layers until the engine has gone."""

import logging
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pellucid import __version__
from pellucid.backends.choice import make_backend
from pellucid.execution.secret_file import read_secret
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.stage_address import StageAddress
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.stages.link import BEAT_SECONDS
from pellucid.stages.messages import Alive, Failed, Hello, ToStage, decode_to_stage, encode
from pellucid.stages.part_host import OwnSettings, PartHost
from pellucid.stages.wire import Wire, shake_hands

_log = logging.getLogger(__name__)

# After which an engine that says nothing is one whose machine has gone.
SILENCE_SECONDS = 30.0
GREETING_SECONDS = 5.0


class StageServer:
    """Listens for engines, and serves one at a time.

    Args:
        address: where to listen.
        key: the secret of all processes of an engine.
        own: what this machine decides.

    Attributes:
        address: with the port that was taken.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(self, address: StageAddress, key: bytes, own: OwnSettings) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._listener = socket.create_server((address.host, address.port), family=family)
        self.address = StageAddress(address.host, self._listener.getsockname()[1])
        self._key = key
        self._host = PartHost(own)
        self._is_closed = False
        self._end: socket.socket | None = None  # of the present connection

    def run(self, on_change: Callable[[str], None]) -> None:
        """Serves engines until `close`.

        Args:
            on_change: called with a sentence when an engine comes or goes.
        """
        while not self._is_closed:
            self.serve_one(on_change)

    def serve_one(self, on_change: Callable[[str], None]) -> None:
        """Serves the next caller until it has gone; or returns at `close`. Arguments are those of `run`."""
        try:
            end, (peer, *_) = self._listener.accept()
        except OSError:
            return
        with end:
            self._end = end
            self._greet(end, peer, on_change)
            self._end = None

    def close(self) -> None:
        """Ends `run`, and the connection to an engine. From any thread."""
        self._is_closed = True
        if (end := self._end) is not None:
            with suppress(OSError):  # it has ended by itself
                end.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):  # where nobody waits
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _greet(self, end: socket.socket, peer: str, on_change: Callable[[str], None]) -> None:
        try:
            end.settimeout(GREETING_SECONDS)
            wire = shake_hands(end, self._key, is_engine=False)
            wire.send(encode(Hello(__version__)))
            decode_to_stage(wire.receive())  # shows that the caller has the key
            end.settimeout(SILENCE_SECONDS)
        except (OSError, ValueError) as error:
            _log.warning("a call from %s was not from an engine with this key: %s", peer, error)
            return
        on_change(f"computes for the engine at {peer}")
        reason = _serve(wire, self._host)
        self._host.close()
        on_change(f"the engine at {peer} has gone ({reason}); waits for another one")


def open_stage(
    address: StageAddress,
    key_file: Path,
    model: str | None,
    revision: str | None,
    num_threads: int | None,
) -> StageServer:
    """A stage that listens. Arguments are those of `StageServer` and of `EngineConfig`.

    Raises:
        ValueError: the key cannot be read, a setting cannot be used, there is no such model, or the address is taken or
            of no machine here.
    """
    config = EngineConfig(model=model, revision=revision, num_threads=num_threads, device="cpu")
    key = read_secret("stages_key", key_file)
    # What is missing is said before an engine comes; and what is imported for it is no part of its memory.
    open_stored_model(find_model(model, revision).path)
    make_backend(config)
    try:
        return StageServer(address, key, OwnSettings(model, revision, num_threads))
    except OSError as error:
        raise ValueError(f"listen={str(address)!r}: {error.strerror or error}") from None


def _serve(wire: Wire, host: PartHost) -> str:
    """Answers an engine until it has gone. Returns why.

    A thread of its own reads: an engine that sends the next steps never waits for this one.
    """
    messages: queue.SimpleQueue[ToStage | str] = queue.SimpleQueue()
    has_ended = threading.Event()

    def read() -> None:
        try:
            while True:
                message = decode_to_stage(wire.receive())
                if not isinstance(message, Alive):
                    messages.put(message)
        except (OSError, ValueError) as error:
            host.give_up()
            messages.put(str(error) or type(error).__name__)

    def beat() -> None:
        try:
            while not has_ended.wait(BEAT_SECONDS):
                wire.send(encode(Alive()))
        except OSError:
            pass  # the reader says so

    threads = [
        threading.Thread(target=each, name=f"pellucid-stage-{each.__name__}", daemon=True)
        for each in (read, beat)
    ]
    for thread in threads:
        thread.start()
    try:
        while not isinstance(message := messages.get(), str):
            reply = host.answer(message)
            if isinstance(reply, Failed):
                _log.warning("%s: %s", type(message).__name__, reply.error)
            wire.send(encode(reply))
        return message
    except (OSError, ValueError) as error:
        return str(error)
    finally:
        has_ended.set()
        wire.close()
        for thread in threads:
            thread.join()
