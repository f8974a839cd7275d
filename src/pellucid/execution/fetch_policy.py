"""The fetch policy: whether to fetch a prefix from a store that may be slower than computing it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

WEIGHT = 0.25  # of the latest measurement in a mean
# Of a step that tells the time of a token of a prompt: smaller steps take as long for fewer.
MIN_TOKENS = 32
TRIAL_SECONDS = 30.0  # after so long a prefix is fetched to measure the store again


@dataclass
class FetchPolicy:
    """Compares two measured times: of computing a token of a prompt, and of a call to the store.

    Args:
        clock: seconds, monotonic.
    """

    _clock: Callable[[], float]
    _token_seconds: float = math.inf  # until the first prompt, whatever is fetched is sooner
    _call_seconds: float = math.inf
    _last_fetch: float = -math.inf

    def note_computed(self, num_tokens: int, seconds: float) -> None:
        """A step has computed so many tokens."""
        if num_tokens >= MIN_TOKENS:
            self._token_seconds = _mean(self._token_seconds, seconds / num_tokens)

    def note_fetched(self, num_calls: int, seconds: float) -> None:
        """The store has been called so often for a prefix, and it took so long."""
        now = self._clock()
        before = self._call_seconds if now - self._last_fetch < TRIAL_SECONDS else math.inf
        self._last_fetch = now
        if num_calls:
            self._call_seconds = _mean(before, seconds / num_calls)

    def compute_seconds(self, num_tokens: int) -> float:
        """How long it takes to compute so many tokens."""
        return self._token_seconds * num_tokens

    def pays(self, num_tokens: int, num_calls: int) -> bool:
        """Whether to fetch so many tokens, which takes so many calls."""
        if self._clock() - self._last_fetch >= TRIAL_SECONDS:
            return True
        return self._call_seconds * num_calls < self.compute_seconds(num_tokens)


def _mean(before: float, latest: float) -> float:
    return latest if before == math.inf else before + WEIGHT * (latest - before)
