"""What crosses from the control plane to the data plane and back, as plain data: it can be sent to another process.

The scheduler decides it, execution carries it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from pellucid.inputs.sampling_params import SamplingParams

NO_ROWS = range(0)
FREED_BLOCK = -1  # in place of the id of a block that has left the window and was freed
# The ids of a request's blocks in each group of layers.
BlockIds: TypeAlias = tuple[tuple[int, ...], ...]


class TokenGrammar(Protocol):
    """Which tokens may come next in a completion: a function of its tokens so far."""

    def copy(self) -> "TokenGrammar":
        """The same for another completion, from its first token on."""
        ...

    def mask(self, token_ids: Sequence[int]) -> bytes:
        """A bit for each token of the vocabulary, in words of 32 bits, the lowest first.

        Raises:
            ValueError: nothing can be said of this completion.
        """
        ...

    def is_complete(self, token_ids: Sequence[int]) -> bool:
        """Whether nothing may follow."""
        ...


class TokenBudget(Protocol):
    """Which token must come next in a completion: a function of its tokens so far."""

    def copy(self) -> "TokenBudget":
        """The same for another completion, from its first token on."""
        ...

    def forced_token(self, token_ids: Sequence[int]) -> int | None:
        """The only token that may come next; None: any."""
        ...


@dataclass(frozen=True, slots=True)
class StartedRequest:
    """All that choosing a request's tokens needs, and that does not change from step to step.

    Attributes:
        seed, stream: of its random numbers.
        stop_token_ids: end the request; `min_tokens` forbids them.
        bad_words_token_ids: each way to write a bad word in tokens, none of them empty.
        grammar, thinking_budget: of this completion alone.
        num_candidates: of a beam: continuations that its search wants to see at each step; 0: it is no beam.
        output_token_ids: its output so far.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    stream: int
    stop_token_ids: frozenset[int]
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    grammar: TokenGrammar | None
    thinking_budget: TokenBudget | None
    num_candidates: int
    output_token_ids: tuple[int, ...]


class ScheduledRequest(NamedTuple):
    """One request's part of a step.

    A tuple, because a step makes one for each request: a frozen dataclass takes three times as long.

    Attributes:
        start, end: positions that the step computes: start .. end - 1.
        token_ids: at these positions.
        num_recomputed_tokens: how many of these, from the first, were computed before: the request
            lost them when it was preempted, or a sibling computed them.
        num_draft_tokens: how many of these, the last ones, are drafts. The row before the first draft
            and the row of each draft are sampled from, as long as the drafts are right.
        samplers: the ids of the requests that sample from the logits of the last rows; none if these rows do not
            reach the request's last token, else the request's, and those of its siblings if they have been waiting
            for this prompt.
        num_prompt_tokens: of the request.
        state_slot: where its recurrent states are; 0 where the model has none.
        is_decoding: as in `Request`.
        prompt_logprob_rows: the rows, counted from the first, whose prompt log-probabilities are to be given.
        num_guessed_tokens: how many tokens before the drafts, the last ones, a later step may replace by others: in a
            draft model, its own drafts.
    """

    request_id: str
    start: int
    end: int
    token_ids: Sequence[int]
    num_recomputed_tokens: int
    num_draft_tokens: int
    samplers: tuple[str, ...]
    num_prompt_tokens: int
    state_slot: int
    is_decoding: bool = False
    prompt_logprob_rows: range = NO_ROWS
    num_guessed_tokens: int = 0

    @property
    def num_scheduled_tokens(self) -> int:
        return self.end - self.start

    @property
    def draft_token_ids(self) -> Sequence[int]:
        return self.token_ids[len(self.token_ids) - self.num_draft_tokens :]

    @property
    def sampled_rows(self) -> range:
        """The rows, counted from the first, that are sampled from."""
        if not self.samplers:
            return NO_ROWS
        num_rows = self.end - self.start
        return range(num_rows - 1 - self.num_draft_tokens, num_rows)

    @property
    def logits_rows(self) -> range:
        """The rows, counted from the first, whose logits are needed."""
        sampled, prompt = self.sampled_rows, self.prompt_logprob_rows
        if not prompt or not sampled:
            return prompt or sampled
        return range(
            prompt.start, sampled.stop
        )  # they meet: before the first output token there are no drafts

    @property
    def num_logits(self) -> int:
        """How many rows need logits."""
        if not self.prompt_logprob_rows:
            return self.num_draft_tokens + 1 if self.samplers else 0
        return len(self.logits_rows)

    @property
    def num_extra_logits(self) -> int:
        """Rows of logits beside one for each request."""
        return max(0, self.num_logits - 1)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """A step. Whoever follows all steps in order knows the text of each request that one of them computes.

    Attributes:
        scheduled: each request at most once.
        block_tables: of each of these, in each group of layers.
        started: the requests that this step is the first to schedule or to sample for, and those whose output so far
            was exchanged for another (beams).
        ended: the ids of requests that have ended since the last step, if they have started or not. A request that has
            started may have the same id.
        preempted: the ids of running requests that had to make room, and wait now.
        errors: why requests end with this step, by id: their blocks were not what their admission counted on.
    """

    scheduled: tuple[ScheduledRequest, ...] = ()
    block_tables: tuple[BlockIds, ...] = ()
    started: tuple[StartedRequest, ...] = ()
    ended: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    errors: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(scheduled.num_scheduled_tokens for scheduled in self.scheduled)

    @property
    def num_held_blocks(self) -> list[int]:
        """KV blocks that each scheduled request holds, of all groups."""
        return [
            sum([len(ids) - ids.count(FREED_BLOCK) for ids in tables])
            for tables in self.block_tables
        ]


class BeamCandidate(Struct, frozen=True):
    """A token that may follow a beam.

    Attributes:
        logprob: in the model's own distribution.
        processed_logprob: the same after the request's masks and penalties, which transformers
            applies to log-probabilities and does not normalise again. The search adds these up.
    """

    token_id: int
    logprob: float
    processed_logprob: float
