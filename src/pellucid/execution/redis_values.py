"""Values of Redis or Valkey."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pellucid.execution.block_file import ForeignBlockError
from pellucid.execution.block_server import ANSWER_SECONDS, ServerAwayError


class RedisValues:
    """As in `ServedValues`. The server has a bound of its own (`maxmemory`).

    Args:
        url: redis://host:port/db, or rediss:// with TLS; the password is in the environment variable REDISCLI_AUTH, as
            redis-cli has it.

    Raises:
        ValueError: the package redis is missing.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise ValueError(
                f"prefix_store={url!r}: needs the package redis: pip install 'pellucid[redis]'"
            ) from None
        self.address = urlsplit(url).netloc
        self._errors = redis.RedisError
        self._wrong_type = redis.ResponseError
        self._client = redis.Redis.from_url(
            url,
            password=os.environ.get("REDISCLI_AUTH"),
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def has(self, name: str) -> bool:
        with self._call():
            return bool(self._client.exists(name))

    def get(self, name: str, num_bytes: int) -> bytes | None:
        with self._call():
            try:
                found = self._client.getrange(name, 0, num_bytes)  # the last index, included
            except self._wrong_type as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                raise ForeignBlockError("is not a string") from None
        assert isinstance(found, bytes)
        return found or None

    def put(self, name: str, value: bytes) -> bool:
        with self._call():
            return bool(self._client.set(name, value))

    def remove(self, name: str) -> None:
        with self._call():
            self._client.delete(name)

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _call(self) -> Iterator[None]:
        try:
            yield
        except (self._errors, OSError) as error:
            raise ServerAwayError(str(error)) from error
