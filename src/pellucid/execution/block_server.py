"""The block server: block files as values on a server that several machines share."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np

from pellucid.backends.ops import BlockBytes
from pellucid.execution.block_file import DamagedBlockError

Answer = TypeVar("Answer")

ANSWER_SECONDS = 1.0  # without an answer, after which a call fails
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds without calls after a call that failed


class ServerAwayError(Exception):
    """A server has not answered, or cannot answer for now."""


class ServedValues(Protocol):
    """Values by name on a server, which removes the least recently used ones itself. Any thread may call.

    Every method may raise a ServerAwayError, after `ANSWER_SECONDS` at the latest.

    Attributes:
        address: for people.
    """

    @property
    def address(self) -> str: ...

    def has(self, name: str) -> bool: ...

    def get(self, name: str, num_bytes: int) -> bytes | None:
        """A value; None if there is none. Of one that has more bytes than expected never more than one byte more.

        Args:
            num_bytes: that are expected.

        Raises:
            DamagedBlockError: it has more bytes.
            ForeignBlockError: it is no value at all.
        """

    def put(self, name: str, value: bytes) -> bool:
        """Returns False if there is no room."""

    def remove(self, name: str) -> None: ...

    def close(self) -> None: ...


class BlockServer:
    """Block files by "fingerprint/hash".

    No method raises because the server is away: after a call that failed there is none for a second, then for two,
    and so on; meanwhile no block is there and none is written.

    Args:
        values: the server's.
        fingerprint: of the format of the files.
        file_bytes: of every file of this format.
        report: called with a warning for people when the server goes away, and when it is back.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        values: ServedValues,
        fingerprint: bytes,
        file_bytes: int,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file_bytes = file_bytes
        self._values = values
        self._folder = fingerprint.hex()[:32]
        self._report = report
        self._clock = clock
        self._pause = 0.0  # seconds; 0: the last call succeeded
        self._calls_again_at = 0.0

    def name(self, block_hash: bytes) -> str:
        return f"{self._values.address}: {self._key(block_hash)}"

    def has(self, block_hash: bytes) -> bool:
        return self._ask(lambda: self._values.has(self._key(block_hash)), False)

    def read(self, block_hash: bytes) -> BlockBytes | None:
        """As in `BlockStore`."""
        key = self._key(block_hash)
        data = self._ask(lambda: self._values.get(key, self.file_bytes), None)
        if data is None:
            return None
        if len(data) != self.file_bytes:
            raise DamagedBlockError(f"does not have {self.file_bytes} bytes")
        return np.frombuffer(data, np.uint8)

    def write(self, block_hash: bytes, parts: Iterable[bytes | memoryview]) -> bool:
        value = b"".join(parts)
        return self._ask(lambda: self._values.put(self._key(block_hash), value), False)

    def remove(self, block_hash: bytes) -> None:
        self._ask(lambda: self._values.remove(self._key(block_hash)), None)

    def close(self) -> None:
        self._values.close()

    def _key(self, block_hash: bytes) -> str:
        return f"{self._folder}/{block_hash.hex()}"

    def _ask(self, call: Callable[[], Answer], nothing: Answer) -> Answer:
        """The server's answer; `nothing` while it is away."""
        if self._clock() < self._calls_again_at:
            return nothing
        try:
            answer = call()
        except ServerAwayError as error:
            if not self._pause:
                self._report(
                    f"{self._values.address}: {error}: no blocks are shared until it answers"
                )
            self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
            self._calls_again_at = self._clock() + self._pause
            return nothing
        if self._pause:
            self._pause = 0.0
            self._report(f"{self._values.address}: answers again")
        return answer
