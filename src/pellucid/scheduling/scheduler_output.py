"""The scheduler's output: the tokens of each request that a step computes.

The scheduler decides it, execution carries it out.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pellucid.scheduling.request import Request


class ScheduledRequest(NamedTuple):
    """One request's part of a step: its tokens at start .. start + num_scheduled_tokens - 1.

    A tuple, because a step makes one for each request: a frozen dataclass takes three times as long.

    Attributes:
        num_recomputed_tokens: how many of these, from the first, were computed before: the request
            lost them when it was preempted, or a sibling computed them.
        num_draft_tokens: how many of these, the last ones, are drafts. The row before the first draft
            and the row of each draft are sampled from, as long as the drafts are right.
        samplers: the requests that sample from the logits of the last rows; none if these rows do not reach
            the request's last token, else the request, and its siblings if they have been waiting for
            this prompt.
        block_tables: the request's block table in each group of layers.
        state_slot: where its recurrent states are; 0 where the model has none.
    """

    request: Request
    start: int
    num_scheduled_tokens: int
    num_recomputed_tokens: int
    num_draft_tokens: int
    samplers: tuple[Request, ...]
    block_tables: tuple[tuple[int, ...], ...]
    state_slot: int

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups that the request holds."""
        num_freed = sum([table.count(-1) for table in self.block_tables if table[0] == -1])
        return sum(map(len, self.block_tables)) - num_freed

    @property
    def end(self) -> int:
        return self.start + self.num_scheduled_tokens

    @property
    def sampled_rows(self) -> range:
        """The rows, counted from the first, that are sampled from."""
        if not self.samplers:
            return range(0)
        return range(
            self.num_scheduled_tokens - 1 - self.num_draft_tokens, self.num_scheduled_tokens
        )

    @property
    def prompt_logprob_rows(self) -> range:
        """The rows, counted from the first, whose prompt log-probabilities are to be given.

        Each position's are given once: not again by a row that is computed again.
        """
        request, first = self.request, self.num_recomputed_tokens
        if request.params.prompt_logprobs is None or request.output_token_ids:
            return range(0)
        last = min(self.end, request.num_prompt_tokens - 1)  # the next position is a prompt token's
        return range(first, max(first, last - self.start))

    @property
    def logits_rows(self) -> range:
        """The rows, counted from the first, whose logits are needed."""
        sampled = self.sampled_rows
        if self.request.params.prompt_logprobs is None:
            return sampled
        prompt = self.prompt_logprob_rows
        if not prompt or not sampled:
            return prompt or sampled
        return range(
            prompt.start, sampled.stop
        )  # they meet: before the first output token there are no drafts

    @property
    def num_logits(self) -> int:
        """How many rows need logits."""
        if self.request.params.prompt_logprobs is None:
            return self.num_draft_tokens + 1 if self.samplers else 0
        return len(self.logits_rows)

    @property
    def num_extra_logits(self) -> int:
        """Rows of logits beside one for each request."""
        return max(0, self.num_logits - 1)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """A step.

    Attributes:
        scheduled: each request at most once.
        preempted: running requests that had to make room, and wait now.
    """

    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...]

    @property
    def num_tokens(self) -> int:
        return sum(scheduled.num_scheduled_tokens for scheduled in self.scheduled)


class StepPlan:
    """A step while the scheduler decides on it; a request can be taken back.

    Args:
        num_tokens: that the step may have.
        num_extra_logits: rows of logits that it may have beside one for each request.

    Attributes:
        budget: tokens that may still be scheduled.
        draft_budget: drafts that may still be scheduled without taking another decode's place.
        extra_logits: rows of logits that may still be asked for, beside one for each request.
        num_reserved_seats: siblings that will be running when the step has been computed.
        preempted: who had to make room so far.
    """

    def __init__(self, num_tokens: int, num_extra_logits: int) -> None:
        self.budget = self.draft_budget = num_tokens
        self.extra_logits = num_extra_logits
        self.num_reserved_seats = 0
        self.preempted: list[Request] = []
        self._scheduled: dict[str, ScheduledRequest] = {}

    def add(self, scheduled: ScheduledRequest) -> None:
        self._scheduled[scheduled.request.request_id] = scheduled
        self.budget -= scheduled.num_scheduled_tokens
        if scheduled.num_scheduled_tokens > 1:  # most steps are decodes of one token each
            self.draft_budget -= scheduled.num_draft_tokens
            self.extra_logits -= scheduled.num_extra_logits
        if len(scheduled.samplers) > 1:
            self.num_reserved_seats += len(scheduled.samplers) - 1

    def drop(self, request: Request) -> ScheduledRequest | None:
        """Takes back what the request has been given in this step, if anything, and returns it."""
        scheduled = self._scheduled.pop(request.request_id, None)
        if scheduled is not None:
            self.budget += scheduled.num_scheduled_tokens
            self.draft_budget += scheduled.num_draft_tokens
            self.extra_logits += scheduled.num_extra_logits
            if scheduled.samplers:
                self.num_reserved_seats -= len(scheduled.samplers) - 1
        return scheduled

    def output(self) -> SchedulerOutput:
        return SchedulerOutput(tuple(self._scheduled.values()), tuple(self.preempted))
