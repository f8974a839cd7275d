"""The memory of bodies that are read or wait to be encoded, bounded over all calls."""

from collections import Counter
from dataclasses import dataclass

from pellucid.server.errors import overloaded

# Bytes of a body that are not counted: ordinary calls get in beside anyone's large ones.
SMALL = 64 << 10
OWNER_SHARE = 0.5  # of the limit, that the calls of one owner can hold


class BodyMemory:
    """Counts the bytes of bodies, and refuses what goes beyond the limit.

    Args:
        limit: bytes of all bodies, each without its first `SMALL`.

    Attributes:
        used: of these.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._used_by: Counter[str] = Counter()

    def take(self, owner: str, num_bytes: int) -> None:
        """Raises an ApiError, 429 with the numbers, if there is no room."""
        most = int(self._limit * OWNER_SHARE)
        if self.used + num_bytes > self._limit or self._used_by[owner] + num_bytes > most:
            raise overloaded(
                f"bodies that are being read: there is no room for another large one; those of this client hold"
                f" {self._used_by[owner]} bytes, and can have {most} at most, of {self._limit} in all",
                1,
            )
        self.used += num_bytes
        self._used_by[owner] += num_bytes

    def release(self, owner: str, num_bytes: int) -> None:
        self.used -= num_bytes
        self._used_by[owner] -= num_bytes
        if not self._used_by[owner]:
            del self._used_by[owner]


@dataclass
class HeldBody:
    """The part of a `BodyMemory` that one call holds.

    Args:
        owner: of the call: the name of its key, or its address where there are no keys.
    """

    memory: BodyMemory
    owner: str
    size: int = 0
    _num_counted: int = 0

    def grow(self, num_bytes: int) -> None:
        """Raises an ApiError, 429 with the numbers, if there is no room."""
        counted = max(0, self.size + num_bytes - SMALL) - self._num_counted
        if counted:
            self.memory.take(self.owner, counted)
            self._num_counted += counted
        self.size += num_bytes

    def release(self) -> None:
        """May be called more than once."""
        if self._num_counted:
            self.memory.release(self.owner, self._num_counted)
            self._num_counted = 0
