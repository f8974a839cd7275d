"""The block server: block files as values of Redis or Valkey, which servers on several machines share."""

import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import urlsplit

import numpy as np

from pellucid.backends.ops import BlockBytes
from pellucid.execution.block_file import DamagedBlockError, ForeignBlockError

Answer = TypeVar("Answer")

ANSWER_SECONDS = 1.0  # without a byte of the server, after which a call fails
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds without calls after a call that failed


class BlockServer:
    """Block files by "fingerprint/hash". The server removes the least recently used ones itself (`maxmemory`).

    No method raises because the server is away: after a call that failed there is none for a second, then for two,
    and so on; meanwhile no block is there and none is written.

    Args:
        url: redis://host:port/db, or rediss:// with TLS; the password is in the environment variable REDISCLI_AUTH, as
            redis-cli has it.
        fingerprint: of the format of the files.
        file_bytes: of every file of this format.
        report: called with a warning for people when the server goes away, and when it is back.
        clock: seconds, monotonic.

    Raises:
        ValueError: the package redis is missing.
    """

    def __init__(
        self,
        url: str,
        fingerprint: bytes,
        file_bytes: int,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise ValueError(
                f"prefix_store={url!r}: needs the package redis: pip install 'pellucid[redis]'"
            ) from None
        self.file_bytes = file_bytes
        self._errors = redis.RedisError
        self._wrong_type = redis.ResponseError
        self._client = redis.Redis.from_url(
            url,
            password=os.environ.get("REDISCLI_AUTH"),
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._address = urlsplit(url).netloc
        self._folder = fingerprint.hex()[:32]
        self._report = report
        self._clock = clock
        self._pause = 0.0  # seconds; 0: the last call succeeded
        self._calls_again_at = 0.0

    def name(self, block_hash: bytes) -> str:
        return f"{self._address}: {self._key(block_hash)}"

    def has(self, block_hash: bytes) -> bool:
        return self._ask(lambda: bool(self._client.exists(self._key(block_hash))), False)

    def read(self, block_hash: bytes) -> BlockBytes | None:
        """As in `BlockStore`. Asks for one byte more than a file has, and never for more."""
        key = self._key(block_hash)
        data = self._ask(lambda: self._get(key), b"")
        if not data:
            return None
        if len(data) != self.file_bytes:
            raise DamagedBlockError(f"does not have {self.file_bytes} bytes")
        return np.frombuffer(data, np.uint8)

    def write(self, block_hash: bytes, parts: Iterable[bytes | memoryview]) -> bool:
        value = b"".join(parts)
        return self._ask(lambda: bool(self._client.set(self._key(block_hash), value)), False)

    def remove(self, block_hash: bytes) -> None:
        self._ask(lambda: self._client.delete(self._key(block_hash)), 0)

    def close(self) -> None:
        self._client.close()

    def _key(self, block_hash: bytes) -> str:
        return f"{self._folder}/{block_hash.hex()}"

    def _get(self, key: str) -> bytes:
        try:
            found = self._client.getrange(key, 0, self.file_bytes)
        except self._wrong_type as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            raise ForeignBlockError("is not a string") from None
        assert isinstance(found, bytes)
        return found

    def _ask(self, call: Callable[[], Answer], nothing: Answer) -> Answer:
        """The server's answer; `nothing` while it is away."""
        if self._clock() < self._calls_again_at:
            return nothing
        try:
            answer = call()
        except (self._errors, OSError) as error:
            if not self._pause:
                self._report(f"{self._address}: {error}: no blocks are shared until it answers")
            self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
            self._calls_again_at = self._clock() + self._pause
            return nothing
        if self._pause:
            self._pause = 0.0
            self._report(f"{self._address}: answers again")
        return answer
