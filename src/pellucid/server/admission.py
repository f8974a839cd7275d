"""Admission: bounds the unfinished completions and prompt tokens of the server, and keeps room for every caller."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pellucid.server.api_keys import Caller
from pellucid.server.config import Limits
from pellucid.server.errors import ApiError, overloaded

RATE_WINDOW = 32  # ends of requests from which the time until there is room is estimated
# Of each limit, divided among the callers by weight; the rest is first come, first served.
KEPT_SHARE = 0.5


class Admission:
    """Counts the completions and the prompt tokens of all calls, and refuses what goes beyond the limits.

    Refusing calls early bounds the waiting time of admitted requests. If there are keys, half of each limit is
    reserved for the callers, divided by their weights: a caller with very many requests cannot take all places.

    Args:
        limits: see `Limits`.
        clock: seconds, monotonic.
        callers: all callers; empty: there are no keys.
        isolates: errors tell a caller nothing of the others.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        callers: Collection[Caller],
        isolates: bool,
    ) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=RATE_WINDOW)
        self._isolates = isolates
        weights = {caller.name: caller.weight for caller in callers}
        self.completions = Quota(
            limits.max_unfinished_completions, weights, "completions are unfinished"
        )
        self.tokens = Quota(
            limits.max_unfinished_tokens, weights, "tokens of prompts are unfinished"
        )
        self.texts = Quota(limits.max_waiting_texts, weights, "texts wait to be read")
        self.looks = Quota(limits.max_waiting_looks, weights, "looks into the engine wait")
        self.readers = Quota(limits.max_event_readers, weights, "readers of events are there")
        self.num_refused = 0

    def admit(self, caller: Caller, num_completions: int) -> "Place":
        """Reserves a place for the completions of one call. The caller leaves it when they have ended.

        Raises:
            ApiError: 429 with the numbers.
        """
        self.check_room(caller, num_completions)
        self.completions.take(caller.name, num_completions)
        return Place(self, caller.name, num_completions)

    def check_room(self, caller: Caller, num_completions: int = 1) -> None:
        """Raises an ApiError, 429 with the numbers, if there is no room for so many completions."""
        self._check(self.completions, caller.name, num_completions)

    def check_text_room(self, caller: Caller) -> None:
        """Raises an ApiError, 429 with the numbers, if there is no room for another text."""
        self._check(self.texts, caller.name, 1)

    @contextmanager
    def hold(self, quota: "Quota", caller: Caller) -> Iterator[None]:
        """Holds one of the places of a quota: a text's, a look's, a reader's.

        Raises:
            ApiError: 429 with the numbers.
        """
        self._check(quota, caller.name, 1)
        quota.take(caller.name, 1)
        try:
            yield
        finally:
            quota.take(caller.name, -1)

    def _add_tokens(self, caller: str, num_tokens: int) -> None:
        quota = self.tokens
        if num_tokens > quota.most(caller):
            raise ApiError(
                413,
                f"the prompts have {num_tokens} tokens; the server holds at most {quota.most(caller)}",
            )
        self._check(quota, caller, num_tokens)
        quota.take(caller, num_tokens)

    def _leave(self, place: "Place") -> None:
        self.completions.take(place.caller, -place.num_completions)
        self.tokens.take(place.caller, -place.num_tokens)
        self._ends.append(self._clock())

    def _check(self, quota: "Quota", caller: str, count: int) -> None:
        if count <= quota.room(caller):
            return
        self.num_refused += 1
        if self._isolates:
            raise overloaded(
                f"{quota.used_by(caller)} of this key's {quota.what}; there is no room for {count} more",
                1,
            )
        raise overloaded(
            f"{quota.used} of {quota.limit} {quota.what}{quota.describe(caller)}; this call needs {count}",
            self._seconds_until_room(),
        )

    def _seconds_until_room(self) -> float:
        """An estimate by the rate at which calls ended lately; one second if none has ended."""
        if len(self._ends) < 2:
            return 1.0
        return min(60.0, (self._clock() - self._ends[0]) / len(self._ends))


class Quota:
    """A limit over all callers, of which each caller has a part that the others cannot take.

    Args:
        limit: of all callers together.
        weights: by caller; empty: there is one caller.
        what: that is limited, and its state, in words.

    Attributes:
        used: by all callers.
    """

    def __init__(self, limit: int, weights: dict[str, float], what: str) -> None:
        self.limit = limit
        self.what = what
        self.used = 0
        self._used_by: Counter[str] = Counter()
        total = sum(weights.values())
        self._kept = {
            name: int(limit * KEPT_SHARE * weight / total) for name, weight in weights.items()
        }

    def most(self, caller: str) -> int:
        """The most that a caller can take if the other callers use nothing."""
        return self.limit - sum(kept for name, kept in self._kept.items() if name != caller)

    def room(self, caller: str) -> int:
        """The amount that a caller can take now."""
        kept_for_others = sum(
            max(0, kept - self._used_by[name])
            for name, kept in self._kept.items()
            if name != caller
        )
        return self.limit - self.used - kept_for_others

    def used_by(self, caller: str) -> int:
        return self._used_by[caller]

    def take(self, caller: str, count: int) -> None:
        """Negative: gives back."""
        self.used += count
        self._used_by[caller] += count

    def describe(self, caller: str) -> str:
        """The caller's part in words, if there are other callers."""
        if len(self._kept) < 2:
            return ""
        return f", {self._used_by[caller]} of them this key's, which can have {self.most(caller)} at most"


@dataclass
class Place:
    """The part of an `Admission` that one call holds."""

    _admission: Admission
    caller: str
    num_completions: int
    num_tokens: int = 0
    _has_left: bool = False

    def add_tokens(self, num_tokens: int) -> None:
        """Counts the call's prompts too, once their lengths are known.

        Raises:
            ApiError: 413 or 429 with the numbers.
        """
        self._admission._add_tokens(self.caller, num_tokens)  # noqa: SLF001  (one class in two parts)
        self.num_tokens += num_tokens

    def leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._admission._leave(self)  # noqa: SLF001
