"""The results of a load: the times of each request, percentiles, throughput and goodput."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Outcome:
    """One request. Times are in seconds after the start of the load.

    Attributes:
        due: when it should have been sent; equal to `sent` if requests wait for each other.
        chunk_times: when each piece of the answer arrived.
        num_output_tokens: as the server counts them; pieces, if it does not say.
        num_prompt_tokens, num_cached_tokens: as the server counts them; None if it does not say.
        failure: the cause in a few words; None: the answer is complete.
    """

    due: float
    sent: float
    chunk_times: tuple[float, ...]
    ended: float
    num_output_tokens: int
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    failure: str | None = None
    message: str = ""

    @property
    def first_token_seconds(self) -> float | None:
        """None: nothing came."""
        return self.chunk_times[0] - self.sent if self.chunk_times else None

    @property
    def seconds_per_token(self) -> float | None:
        """After the first one, on average; None: there is no second one."""
        if self.num_output_tokens < 2 or len(self.chunk_times) < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.num_output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Between pieces of the answer, which have one token each or more."""
        return [later - earlier for earlier, later in pairwise(self.chunk_times)]


@dataclass(frozen=True)
class ServiceLevel:
    """The times within which a request counts for goodput, in seconds; None: no limit.

    Attributes:
        first_token: most from sending to the first token.
        inter_token: most between tokens, on average over the answer.
    """

    first_token: float | None = None
    inter_token: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("ttft_slo", self.first_token), ("itl_slo", self.inter_token)):
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value}: must be above 0")

    @property
    def is_set(self) -> bool:
        return self.first_token is not None or self.inter_token is not None

    def is_met_by(self, outcome: Outcome) -> bool:
        """Whether a request meets the limits. A failed request does not; an answer of one token has no time between
        tokens."""
        if outcome.failure is not None:
            return False
        times = (
            (self.first_token, outcome.first_token_seconds),
            (self.inter_token, outcome.seconds_per_token),
        )
        return all(most is None or value is None or value <= most for most, value in times)


@dataclass(frozen=True)
class Spread:
    """Of measured values."""

    mean: float
    percentiles: tuple[float, ...]  # those of PERCENTILES
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None: there are no values. Percentiles are interpolated between the two nearest values."""
        if not values:
            return None
        percentiles = np.percentile(np.array(values, np.float64), PERCENTILES)
        return cls(sum(values) / len(values), tuple(map(float, percentiles)), max(values))


class LoadResult:
    """A load that has ended, or was ended: the outcomes of all requests that were sent."""

    def __init__(self, outcomes: Iterable[Outcome], level: ServiceLevel) -> None:
        self.outcomes = sorted(outcomes, key=lambda outcome: outcome.sent)
        self.level = level
        self.completed = [outcome for outcome in self.outcomes if outcome.failure is None]

    @property
    def seconds(self) -> float:
        """From the first request to the end of the last reply."""
        if not self.outcomes:
            return 0.0
        return max(outcome.ended for outcome in self.outcomes) - self.outcomes[0].sent

    @property
    def failures(self) -> Counter[str]:
        return Counter(each.failure for each in self.outcomes if each.failure is not None)

    def message_of(self, failure: str) -> str:
        """The server's message for the first failure of a kind."""
        return next(each.message for each in self.outcomes if each.failure == failure)

    def spreads(self) -> dict[str, Spread | None]:
        """Seconds, over requests that were answered; between tokens, over all gaps of all answers."""
        done = self.completed
        return {
            "first_token": Spread.of(_known(each.first_token_seconds for each in done)),
            "inter_token": Spread.of([gap for each in done for gap in each.gaps]),
            "per_token": Spread.of(_known(each.seconds_per_token for each in done)),
            "end_to_end": Spread.of([each.ended - each.sent for each in done]),
        }

    @property
    def num_output_tokens(self) -> int:
        return sum(each.num_output_tokens for each in self.completed)

    @property
    def num_prompt_tokens(self) -> int | None:
        """None: the server does not say."""
        counts = _known(each.num_prompt_tokens for each in self.completed)
        return round(sum(counts)) if counts else None

    @property
    def num_cached_tokens(self) -> int | None:
        """Prompt tokens that the server found in its cache; None: it does not say."""
        counts = _known(each.num_cached_tokens for each in self.completed)
        return round(sum(counts)) if counts else None

    @property
    def num_good(self) -> int:
        """Requests within the service level."""
        return sum(map(self.level.is_met_by, self.outcomes))

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    @property
    def largest_delay(self) -> float:
        """The largest delay between the time when a request was due and the time when it was sent."""
        return max((outcome.sent - outcome.due for outcome in self.outcomes), default=0.0)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
