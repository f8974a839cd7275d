"""The line of requests that wait: how many are admitted before each of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RequestsAhead:
    """The waiting requests before one that waits.

    Attributes:
        own: of the same caller.
        others: of other callers; an estimate, as if all requests were equally long and all weights equal.
    """

    own: int
    others: int

    @property
    def num(self) -> int:
        return self.own + self.others

    @property
    def cause(self) -> str:
        """Behind whom the request waits, in words; empty: it is the next."""
        own = (
            f"{self.own} requests of the same key" if self.own != 1 else "1 request of the same key"
        )
        others = f"about {self.others} of other keys, in turn"
        parts = ([own] if self.own else []) + ([others] if self.others else [])
        return f"behind {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True, order=True)
class Waiting:
    """A request that waits.

    Attributes:
        place: the key by which the scheduler orders the requests of a caller.
    """

    place: float
    request_id: str
    caller: str


class WaitingLine:
    """The line at one moment. Finding all places takes one sort; to find each by itself would take as many.

    Callers take turns: first the first request of each caller, then the second ones, and so on.
    """

    def __init__(self, waiting: Iterable[Waiting]) -> None:
        self._num_own: Counter[str] = Counter()
        turns: list[tuple[int, Waiting]] = []
        for each in sorted(waiting):
            turns.append((self._num_own[each.caller], each))
            self._num_own[each.caller] += 1
        turns.sort(key=lambda turn: turn[0])
        self._ahead = {
            each.request_id: RequestsAhead(num_own, position - num_own)
            for position, (num_own, each) in enumerate(turns)
        }

    def ahead_of(self, request_id: str, caller: str) -> RequestsAhead:
        """Of a request that waits; one that came later than this line is behind all of it."""
        found = self._ahead.get(request_id)
        if found is not None:
            return found
        own = self._num_own[caller]
        return RequestsAhead(own, len(self._ahead) - own)
