"""The draft policy: decides how many drafts each request gets, by their acceptance and the times of steps."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

DECAY = 0.9  # of the weight of an observation, with each newer one
PRIOR_TRIALS = 2.0  # the acceptance of all requests counts as many trials of a single request
FIRST_ACCEPTANCE = 0.5
# The time of one more row as a share of a step's time per row, until steps of several sizes are measured.
FIRST_ROW_SHARE = 0.3
# While all steps have drafts, one plain step in so many: the time of a plain step changes with the depth.
MAX_STEPS_WITH_DRAFTS = 32
# While drafts save no time, a probe (a step with a few drafts) measures again whether they do: at most this often, and
# for at most this share of the time.
MIN_STEPS_BETWEEN_PROBES = 48
MAX_LOSS_SHARE = 0.003
FIRST_LOSS, MAX_LOSS = 0.6, 8.0  # plain steps that drafts may lose at first, and after they won
NUM_PROBE_DRAFTS = 2
# Steps without a new decision while drafts save no time, or while none are found: deciding takes time as well.
MAX_BACKOFF = 16
MAX_BACKOFF_AFTER_MISSES = 8
# Largest change of an estimate by one measured step, since steps may be interrupted.
MAX_SURPRISE = 0.5


class Verdict(Enum):
    """Whether the next step may have drafts, and why."""

    UNKNOWN = "nothing measured yet"
    ALWAYS = "every step for which drafts are found has them"
    PAY = "drafts pay"
    DO_NOT_PAY = "drafts do not pay"
    LOST = "drafts have cost more than they brought"


class DraftOutcome(NamedTuple):
    """The result of a request's drafts in a step.

    Attributes:
        num_drafts: drafts up to and including the first wrong one.
        num_right: drafts that the model chose as well.
    """

    request_id: str
    num_drafts: int
    num_right: int


class DecodeStep(NamedTuple):
    """A step in which all requests decoded, and its times.

    Attributes:
        num_requests: requests in the step.
        num_drafts: drafts in the step.
        num_rows: rows of the step, drafts included.
        seconds: time of the step, without drafting.
        drafting_seconds: time of deciding and proposing.
        num_skipped: steps before this one for which nothing was decided, and which were not recorded.
    """

    num_requests: int
    num_drafts: int
    num_rows: int
    seconds: float
    drafting_seconds: float
    num_skipped: int = 0


class StepSeconds:
    """Seconds of decode steps by their number of rows, as measured lately."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._rows: list[int] = []  # measured, ascending

    def record(self, num_rows: int, seconds: float) -> None:
        count = self._counts.get(num_rows, 0)
        if not count:
            self._rows.insert(bisect_left(self._rows, num_rows), num_rows)
            self._seconds[num_rows] = seconds
        weight = max(1 / (count + 1), 1 - DECAY)
        estimate = self._seconds[num_rows]
        bound = MAX_SURPRISE * estimate
        self._seconds[num_rows] += weight * min(max(seconds - estimate, -bound), bound)
        self._counts[num_rows] = count + 1

    def __call__(self, num_rows: int) -> float | None:
        """Between measured sizes on the line between them, beyond them by the slope of all; None if
        nothing has been measured."""
        if not self._rows:
            return None
        if num_rows in self._seconds:
            return self._seconds[num_rows]
        place = bisect_left(self._rows, num_rows)
        if 0 < place < len(self._rows):
            low, high = self._rows[place - 1], self._rows[place]
            slope = (self._seconds[high] - self._seconds[low]) / (high - low)
            return self._seconds[low] + slope * (num_rows - low)
        nearest = self._rows[0] if place == 0 else self._rows[-1]
        seconds = self._seconds[nearest]
        return max(
            seconds + self._slope() * (num_rows - nearest), seconds * min(1, num_rows / nearest)
        )

    def _slope(self) -> float:
        low, high = self._rows[0], self._rows[-1]
        if low == high:
            return FIRST_ROW_SHARE * self._seconds[low] / low
        return max(0.0, (self._seconds[high] - self._seconds[low]) / (high - low))


class DraftPolicy:
    """Decides how many drafts save time.

    Draft j of a request with acceptance a is right with probability a^j. It costs the time of one more
    row and of drafting it. Adding drafts in order of probability, as long as one brings more tokens per
    second than the step without it, gives the most tokens per second; for equal requests that is the k
    with the greatest speed-up E / (k c + v) (`formulas.draft_speedup`).

    A model with recurrent states computes again, in the step after a wrong draft j, the j tokens up to the
    one that was drawn in its place. So draft j costs j rows more with the probability a^(j-1) - a^j.

    The time that drafts may lose is bounded: by a small share of the time, plus the time that they have won
    lately, as measured.

    Args:
        max_drafts: for one request in one step.
        decides: False gives `max_drafts` to all.
        recomputes: whether the tokens up to a wrong draft are computed again.

    Attributes:
        step_seconds: how long decode steps take, by their number of rows.
        acceptance: share of drafts that were right lately, of all requests.
        verdict: the last decision.
        backoff: steps after the last decision for which no new decision is needed.
    """

    def __init__(self, max_drafts: int, decides: bool = True, recomputes: bool = False) -> None:
        self._max_drafts = max_drafts
        self._decides = decides
        self._recomputes = recomputes
        self.step_seconds = StepSeconds()
        self._draft_seconds = 0.0  # for one draft
        self.acceptance = FIRST_ACCEPTANCE  # of all requests
        self._trials: dict[str, tuple[float, float]] = {}  # by request: right ones, all
        self._steps_with_drafts = 0  # in a row
        self._steps_without = 0
        self._num_probes = 0
        self._num_misses = 0  # decisions in a row to draft that found no drafts
        self._allowance: float | None = None  # seconds that drafts may still lose
        self.verdict = Verdict.UNKNOWN
        self.backoff = 0

    @property
    def reason(self) -> str:
        """Of the last decision, with what was measured."""
        if self.verdict in (Verdict.PAY, Verdict.DO_NOT_PAY):
            return f"{self.verdict.value}: {self.acceptance:.0%} of them right"
        return str(self.verdict.value)

    def max_drafts(self, request_ids: Sequence[str]) -> dict[str, int]:
        """By request id, the most drafts of the next step; requests without any are left out.

        Args:
            request_ids: of all requests that decode.
        """
        self.backoff = 0
        if not self._decides:
            self.verdict = Verdict.ALWAYS
            return dict.fromkeys(request_ids, self._max_drafts)
        plain = self.step_seconds(len(request_ids))
        if not plain or self._allowance is None:
            return {}
        if self._steps_with_drafts >= MAX_STEPS_WITH_DRAFTS:
            return {}  # so that the time of a plain step is measured again
        if self._allowance <= 0:
            self.verdict = Verdict.LOST
            self.backoff = MAX_BACKOFF
            return {}
        chosen = self._worthwhile(request_ids, plain, self._allowance)
        if chosen:
            self.verdict = Verdict.PAY
            self.backoff = min(self._num_misses, MAX_BACKOFF_AFTER_MISSES)
            return chosen
        self.verdict = Verdict.DO_NOT_PAY
        self.backoff = MAX_BACKOFF
        num_drafts = min(NUM_PROBE_DRAFTS, self._max_drafts)
        cost = (num_drafts + self._recomputes) * self._row_seconds(len(request_ids))
        if self._steps_without < MIN_STEPS_BETWEEN_PROBES or cost > self._allowance:
            return {}
        self._num_probes += 1
        return {request_ids[self._num_probes % len(request_ids)]: num_drafts}

    def record(self, outcomes: Iterable[DraftOutcome], step: DecodeStep) -> float:
        """Records a step.

        Args:
            outcomes: of the requests that had drafts.
            step: in which all requests decoded.

        Returns:
            Seconds that drafts have saved in this step, by measured times; negative if they took time.
        """
        num_requests, num_rows = step.num_requests, step.num_rows
        self.step_seconds.record(num_rows, step.seconds)
        num_right = 0
        for request_id, drafts, right in outcomes:
            num_right += right
            self._note(request_id, drafts, right)
        plain = self.step_seconds(num_requests)
        with_drafts = self.step_seconds(num_rows)
        assert plain is not None and with_drafts is not None
        if self._allowance is None:
            self._allowance = FIRST_LOSS * plain
        won = 0.0
        if num_rows > num_requests:  # also without drafts, after a wrong one
            won = num_right / num_requests * plain - max(0.0, with_drafts - plain)
        if step.num_drafts:
            per_draft = step.drafting_seconds / step.num_drafts
            self._draft_seconds += (1 - DECAY) * (per_draft - self._draft_seconds)
            self._steps_with_drafts += 1
            self._steps_without = self._num_misses = self.backoff = 0
        elif num_rows == num_requests:
            self._steps_with_drafts = 0
            self._steps_without += 1 + step.num_skipped
            self._num_misses += self.verdict is Verdict.PAY
        won -= step.drafting_seconds
        allowance = self._allowance + won + (1 + step.num_skipped) * MAX_LOSS_SHARE * plain
        self._allowance = min(allowance, MAX_LOSS * plain)
        return won

    def _note(self, request_id: str, num_drafts: int, num_right: int) -> None:
        right, all_ = self._trials.pop(request_id, (0.0, 0.0))
        for index in range(num_drafts):
            is_right = float(index < num_right)
            right, all_ = right * DECAY + is_right, all_ * DECAY + 1
            self.acceptance += (1 - DECAY) / 2 * (is_right - self.acceptance)
        self._trials[request_id] = right, all_
        if len(self._trials) > 1024:  # the one that was noted longest ago
            del self._trials[next(iter(self._trials))]

    def _acceptance_of(self, request_id: str) -> float:
        right, all_ = self._trials.get(request_id, (0.0, 0.0))
        return (right + PRIOR_TRIALS * self.acceptance) / (all_ + PRIOR_TRIALS)

    def _row_seconds(self, num_requests: int) -> float:
        """Time of one draft: its row, and making it."""
        most = num_requests * (1 + self._max_drafts)
        plain, largest = self.step_seconds(num_requests), self.step_seconds(most)
        assert plain is not None and largest is not None
        return max(0.0, largest - plain) / (most - num_requests) + self._draft_seconds

    def _worthwhile(
        self, request_ids: Sequence[str], plain: float, allowance: float
    ) -> dict[str, int]:
        """The drafts that save time on average, and whose loss stays within the allowance if all are wrong."""
        row_seconds = self._row_seconds(len(request_ids))
        tokens, seconds = float(len(request_ids)), plain
        chosen: dict[str, int] = {}
        # (minus the probability of the draft, name, its number, the probability of the one before it)
        likeliest = [(-self._acceptance_of(name), name, 1, 1.0) for name in request_ids]
        heapify(likeliest)
        while likeliest:
            minus_probability, name, count, before = heappop(likeliest)
            num_rows = 1.0
            if self._recomputes:
                num_rows += count * (before + minus_probability)
                allowance -= row_seconds * (count == 1)  # of the first draft, if all are wrong
            allowance -= row_seconds
            cost = num_rows * row_seconds
            if allowance < 0 or -minus_probability * seconds <= tokens * cost:
                break
            tokens -= minus_probability
            seconds += cost
            chosen[name] = count
            if count < self._max_drafts:
                next_one = minus_probability * self._acceptance_of(name)
                heappush(likeliest, (next_one, name, count + 1, -minus_probability))
        return chosen
