"""A request: one generation, from its arrival to its end, and the rule of that end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.block import NO_SALT, CacheSalt
from pellucid.scheduling.scheduler_output import StartedRequest, TokenBudget, TokenGrammar


class FinishReason(Enum):
    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, max_time or the context length
    ABORT = "abort"  # the caller gave up
    ERROR = "error"  # this request failed; the engine and the others did not


End: TypeAlias = tuple[FinishReason, int | str]  # and the stop reason


class Taken(NamedTuple):
    """What a request takes of the tokens that a step has sampled for it.

    Attributes:
        token_ids: up to the one that ends the request.
        end: why the request ends with the last of them; None: it goes on.
    """

    token_ids: Sequence[int]
    end: End | None = None


class EndRule(Struct, frozen=True):
    """Which token ends an output.

    Args:
        stop_token_ids: end and stop tokens; `min_tokens` forbids them.
        max_tokens: of the request and of the context, the smaller.
        limit: what sets `max_tokens`, as the stop reason says it.
    """

    stop_token_ids: frozenset[int]
    max_tokens: int
    limit: str

    def end_after(self, token_id: int, num_output_tokens: int) -> End | None:
        """Why an output ends with a token, if it does.

        Args:
            token_id: the last output token.
            num_output_tokens: output tokens up to and including that one.
        """
        if token_id in self.stop_token_ids:
            return FinishReason.STOP, token_id
        if num_output_tokens < self.max_tokens:
            return None
        return FinishReason.LENGTH, self.limit

    def take(self, token_ids: Sequence[int], num_output_tokens: int) -> Taken:
        """What an output takes of tokens that follow it.

        Args:
            token_ids: the tokens that were sampled.
            num_output_tokens: output tokens before them.
        """
        for number, token_id in enumerate(token_ids, 1):
            if (end := self.end_after(token_id, num_output_tokens + number)) is not None:
                return Taken(token_ids[:number], end)
        return Taken(token_ids)


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


Key: TypeAlias = tuple[float, int]


@dataclass(eq=False, slots=True)
class Request:
    """One generation, as the scheduler sees it.

    The fields between the two lines of dashes are derived from those above; they are stored because every
    token needs them. Only the scheduler writes the fields below the second line. The cache holds
    `num_computed_tokens` positions. Once the prompt is computed, these are num_known_tokens - 1 between steps,
    because the last sampled token has not been fed back. A beam has all of
    its tokens computed while it waits for the next one.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    arrival_time: float  # seconds on the caller's clock
    max_tokens: int  # of params and of the context, the smaller
    eos_token_ids: frozenset[int] = frozenset()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: TokenGrammar | None = None  # of this completion alone
    thinking_budget: TokenBudget | None = None  # of this completion alone
    index: int = 0  # which of the n completions: picks the random stream of the seed
    cache_salt: CacheSalt = NO_SALT
    priority: int = 0  # lower is sooner, among the requests of a caller
    caller: str = ""  # callers share the engine fairly
    caller_weight: float = 1.0  # of the caller's share
    num_candidates: int = 0  # of a beam: continuations that its search wants to see at each step
    # ----
    deadline: float = field(init=False)  # when `max_time` is over, on the caller's clock
    end_rule: EndRule = field(init=False)
    # ----
    status: RequestStatus = RequestStatus.WAITING
    # Never changes: which request of a caller comes first, and is preempted last.
    queue_key: Key = field(init=False)
    output_token_ids: list[int] = field(default_factory=list)
    draft_token_ids: tuple[int, ...] = ()  # guesses of the next step's tokens
    num_computed_tokens: int = 0
    max_computed_tokens: int = 0  # the most that num_computed_tokens has been, or a sibling's
    num_rewound_tokens: int = 0  # to be computed again, because recurrent states were restored
    num_cached_tokens: int = 0  # found in the prefix cache when first admitted
    num_processed_tokens: int = 0  # rows that went through the model, recomputation included
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    is_introduced: bool = False  # execution knows of it, and of its output

    def __post_init__(self) -> None:
        max_time = self.params.max_time
        self.deadline = float("inf") if max_time is None else self.arrival_time + max_time
        eos = frozenset() if self.params.ignore_eos else self.eos_token_ids
        stop_token_ids = eos | frozenset(self.params.stop_token_ids)
        by_params = self.max_tokens == self.params.max_tokens
        limit = "max_tokens" if by_params else "context_length"
        self.end_rule = EndRule(stop_token_ids, self.max_tokens, limit)

    @property
    def is_beam(self) -> bool:
        """Whether it gets its tokens by `Scheduler.reassign`, not by `update`."""
        return self.num_candidates > 0

    @property
    def number(self) -> int:
        """Counts the requests that the scheduler has queued, from 1."""
        return self.queue_key[1] + 1

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt, output and drafts: what `num_computed_tokens` has to catch up with."""
        num_known_tokens = len(self.prompt_token_ids) + len(self.output_token_ids)
        return num_known_tokens + len(self.draft_token_ids)

    @property
    def is_decoding(self) -> bool:
        """Whether only its newest tokens are not computed yet: it has output, and has lost no computed
        positions. All other computation is prefill."""
        return bool(self.output_token_ids) and self.num_computed_tokens >= self.max_computed_tokens

    @property
    def may_have_drafts(self) -> bool:
        """Whether its next tokens may be guessed: it decodes. A request that recomputes lost positions gets no
        drafts, because they could not be verified before these are computed. After a wrong draft of a model
        with recurrent states, a step without drafts must compute the right tokens again."""
        running = self.status is RequestStatus.RUNNING
        rewound = self.num_rewound_tokens > 0
        return running and self.is_decoding and not self.is_beam and not rewound

    @property
    def has_started(self) -> bool:
        """Whether it runs or has run, and so may have blocks: blocks that it filled, or shared blocks of the
        request from which it was forked."""
        is_running = self.status is RequestStatus.RUNNING
        return is_running or self.num_processed_tokens > 0 or self.max_computed_tokens > 0

    def started(self) -> StartedRequest:
        """What execution needs to know of it, now."""
        return StartedRequest(
            self.request_id,
            self.prompt_token_ids,
            self.params,
            self.seed,
            self.index,
            self.end_rule.stop_token_ids,
            self.bad_words_token_ids,
            self.grammar,
            self.thinking_budget,
            self.num_candidates,
            tuple(self.output_token_ids),
        )

    def token_ids(self, start: int, end: int) -> list[int]:
        """Tokens at positions start .. end - 1: prompt, then output, then drafts."""
        num_prompt_tokens = len(self.prompt_token_ids)
        if num_prompt_tokens <= start and end <= num_prompt_tokens + len(self.output_token_ids):
            return self.output_token_ids[start - num_prompt_tokens : end - num_prompt_tokens]
        prompt = self.prompt_token_ids[start:end]
        start, end = max(0, start - num_prompt_tokens), max(0, end - num_prompt_tokens)
        output = self.output_token_ids[start:end]
        num_output_tokens = len(self.output_token_ids)
        start, end = max(0, start - num_output_tokens), max(0, end - num_output_tokens)
        return [*prompt, *output, *self.draft_token_ids[start:end]]
