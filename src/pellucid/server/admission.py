"""Admission: bounds the unfinished completions and prompt tokens of the server."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pellucid.server.config import Limits
from pellucid.server.errors import ApiError, overloaded

RATE_WINDOW = 32  # ends of requests from which the time until there is room is estimated


class Admission:
    """Counts the completions and the prompt tokens of all calls, and refuses what goes beyond the limits.

    Refusing early is what keeps the waiting time of those bounded that were admitted.

    Args:
        limits: see `Limits`.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=RATE_WINDOW)
        self.num_completions = 0
        self.num_tokens = 0
        self.num_refused = 0

    def admit(self, num_completions: int) -> "Place":
        """Takes a place for the completions of one call. Leave it when they have ended.

        Raises:
            ApiError: 429 with the numbers.
        """
        limit = self._limits.max_unfinished_completions
        if self.num_completions + num_completions > limit:
            raise self._overloaded(f"{self.num_completions} of {limit} completions are unfinished")
        self.num_completions += num_completions
        return Place(self, num_completions)

    def _add_tokens(self, num_tokens: int) -> None:
        limit = self._limits.max_unfinished_tokens
        if num_tokens > limit:
            raise ApiError(
                413, f"the prompts have {num_tokens} tokens; the server holds at most {limit}"
            )
        if self.num_tokens + num_tokens > limit:
            raise self._overloaded(
                f"unfinished prompts have {self.num_tokens} of {limit} tokens, and this call"
                f" {num_tokens}"
            )
        self.num_tokens += num_tokens

    def _leave(self, place: "Place") -> None:
        self.num_completions -= place.num_completions
        self.num_tokens -= place.num_tokens
        self._ends.append(self._clock())

    def _overloaded(self, message: str) -> ApiError:
        self.num_refused += 1
        return overloaded(message, self._seconds_until_room())

    def _seconds_until_room(self) -> float:
        """At the rate at which calls ended lately; one second if nothing is known."""
        if len(self._ends) < 2:
            return 1.0
        return min(60.0, (self._clock() - self._ends[0]) / len(self._ends))


@dataclass
class Place:
    """What one call holds of an `Admission`."""

    _admission: Admission
    num_completions: int
    num_tokens: int = 0
    _has_left: bool = False

    def add_tokens(self, num_tokens: int) -> None:
        """Counts the call's prompts too, once their lengths are known.

        Raises:
            ApiError: 413 or 429 with the numbers.
        """
        self._admission._add_tokens(num_tokens)  # noqa: SLF001  (one class in two parts)
        self.num_tokens += num_tokens

    def leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._admission._leave(self)  # noqa: SLF001
