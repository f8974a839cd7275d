"""How much of an engine's time may go into observing tokens, beside all other events."""

from typing import final

SHARE = 0.02  # of the time; what no clock within a step sees, as cold caches, comes on top
SAVED_SECONDS = 2.0  # of time, whose share may be saved up while little is observed
SMOOTHING = 8  # observations that the expected cost is a mean of, about


@final
class ObservationBudget:
    """Allows observations as long as all events take at most `SHARE` of the time, whatever a token costs and however
    many there are in a second.

    A share of the time that passes is saved up, idle time included, up to that of `SAVED_SECONDS`: a short text
    on an idle engine is observed whole, and a long load in the share alone. Debts end at the same size.

    Args:
        now: seconds, as in all calls.
    """

    def __init__(self, now: float) -> None:
        self._balance = SHARE * SAVED_SECONDS  # seconds of work
        self._earned_until = now
        self._expected = 0.0  # seconds, of one observation
        self._num_reserved = 0

    @property
    def is_used_up(self) -> bool:
        """Whether nothing can be reserved until something is saved up."""
        return self._balance <= 0 or self._balance < min(self._expected, SHARE * SAVED_SECONDS)

    def pay(self, now: float, seconds: float) -> None:
        """Ends all reservations, and pays what observations and all other events have cost since the last call. What
        steps, blocks and texts take is no longer there for observations."""
        self._num_reserved = 0
        earned = SHARE * (now - self._earned_until)
        self._balance = min(self._balance + earned, SHARE * SAVED_SECONDS)
        self._balance = max(self._balance - seconds, -SHARE * SAVED_SECONDS)
        self._earned_until = now

    def reserve(self) -> bool:
        """Whether there is time for one more observation; if so, its expected cost is reserved until `pay`."""
        needed = (self._num_reserved + 1) * self._expected
        if self._num_reserved == 0:  # more than can be saved is never there
            needed = min(needed, SHARE * SAVED_SECONDS)
        if self._balance <= 0 or self._balance < needed:
            return False
        self._num_reserved += 1
        return True

    def settle(self, num_observed: int, seconds: float) -> None:
        """Expects of the next observations what the latest have cost: `seconds`, together."""
        if num_observed:
            cost = seconds / num_observed
            self._expected += (cost - self._expected) / (SMOOTHING if self._expected else 1)
