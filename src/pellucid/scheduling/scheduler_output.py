"""A step, as plain data: what the scheduler has decided and execution carries out."""

from dataclasses import dataclass
from typing import NamedTuple

from pellucid.scheduling.request import Request


class ScheduledRequest(NamedTuple):
    """One request's share of a step: its tokens at start .. start + num_scheduled_tokens - 1.

    A tuple, because a step makes one for each request: a frozen dataclass takes three times as long.

    Attributes:
        num_recomputed_tokens: how many of these, from the first, were computed before: the request
            lost them when it was preempted, or a sibling computed them.
        num_draft_tokens: how many of these, the last ones, are drafts. The row before the first draft
            and the row of each draft are sampled from, as long as the drafts are right.
        samplers: who takes tokens from the logits of the share's last rows: nobody if the share
            does not reach the request's last token, else the request, and its siblings if they have
            been waiting for this prompt.
        block_ids: the request's block table.
    """

    request: Request
    start: int
    num_scheduled_tokens: int
    num_recomputed_tokens: int
    num_draft_tokens: int
    samplers: tuple[Request, ...]
    block_ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.num_scheduled_tokens

    @property
    def sampled_rows(self) -> range:
        """The rows of the share, counted from its first, that are sampled from."""
        if not self.samplers:
            return range(0)
        return range(
            self.num_scheduled_tokens - 1 - self.num_draft_tokens, self.num_scheduled_tokens
        )


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """A step.

    Attributes:
        scheduled: at most one share for each request.
        preempted: running requests that had to make room, and wait now.
    """

    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...]

    @property
    def num_tokens(self) -> int:
        return sum(share.num_scheduled_tokens for share in self.scheduled)
