"""The outputs of requests, as callers get them. Names and meanings are vLLM's where vLLM has them."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import overload

from pellucid.observing.ledger import Ledger


@dataclass(frozen=True)
class Logprob:
    """One token's log-probabilities at one position.

    Attributes:
        logprob: in the model's own distribution, before any sampling parameter.
        final_logprob: in the distribution that was sampled from; -inf if a sampling parameter removed
            the token. None for prompt tokens, which were not sampled.
        rank: 1 for the model's most likely token.
        decoded_token: the text of the token alone.
    """

    logprob: float
    final_logprob: float | None
    rank: int
    decoded_token: str


LogprobsAt = dict[int, Logprob]  # by token id: the top ones by rank, and the chosen token


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What one step added to one completion."""

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobsAt] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass
class RequestMetrics:
    """Times in seconds on the engine's clock; sums over all completions of a request.

    Attributes:
        token_times: when each output token was ready, in order.
        num_processed_tokens: rows that went through the model, recomputed ones included.
        flops: operations of these rows, by `formulas.forward_flops`.
        kv_cache_bytes: largest number of bytes of KV blocks held from one step to the next.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    finished_time: float | None = None
    num_processed_tokens: int = 0
    flops: int = 0
    kv_cache_bytes: int = 0
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        return self.token_times[0] - self.arrival_time if self.token_times else None

    @property
    def prefill_seconds(self) -> float | None:
        """From the first step that had a part of the request to its first token."""
        if not self.token_times or self.first_scheduled_time is None:
            return None
        return self.token_times[0] - self.first_scheduled_time

    @property
    def decode_seconds(self) -> float | None:
        """From the first token to the last."""
        return self.token_times[-1] - self.token_times[0] if self.token_times else None


class GrowingText:
    """A field with a text that grows by pieces, which are joined when it is read: to append to a string copies it."""

    @overload
    def __get__(self, owner: None, kind: type) -> str: ...
    @overload
    def __get__(self, owner: "CompletionOutput", kind: type) -> str: ...
    def __get__(self, owner: "CompletionOutput | None", kind: type) -> str:
        return "" if owner is None else owner.__dict__["text"].getvalue()

    def __set__(self, owner: "CompletionOutput", text: str) -> None:
        owner.__dict__["text"] = pieces = io.StringIO()
        pieces.write(text)


@dataclass
class CompletionOutput:
    """One completion.

    Attributes:
        finish_reason: "stop", "length", "abort" or "error"; None while it runs.
        stop_reason: the stop string or the token id that ended it; for "length" which limit it was
            ("max_tokens", "context_length", "max_time"); for "error" what failed.
        score: of a beam search: what its results are ranked by.
    """

    index: int
    text: GrowingText = GrowingText()
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[LogprobsAt] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None

    def append_text(self, text: str) -> None:
        self.__dict__["text"].write(text)


@dataclass(frozen=True)
class BeamSearchSequence:
    """A completion that a beam search has found, with its prompt, by vLLM's names.

    Attributes:
        tokens: token ids of prompt and completion.
        text: of `tokens`, without special tokens.
        cum_logprob: sum of the completion's log-probabilities.
    """

    tokens: list[int]
    text: str
    cum_logprob: float | None
    finish_reason: str | None
    stop_reason: int | str | None

    @classmethod
    def of(
        cls,
        prompt_token_ids: Sequence[int],
        completion: CompletionOutput,
        decode: Callable[[Sequence[int]], str],
    ) -> "BeamSearchSequence":
        """The prompt and one completion of it; `decode` gives the text of token ids."""
        tokens = [*prompt_token_ids, *completion.token_ids]
        return cls(
            tokens,
            decode(tokens),
            completion.cumulative_logprob,
            completion.finish_reason,
            completion.stop_reason,
        )


@dataclass
class RequestOutput:
    """A request and its completions, complete or so far.

    Attributes:
        prompt: None if token ids were given.
        seed: the given seed, or the one that the engine drew; the same seed gives the same completions.
        prompt_logprobs: None at position 0, which no token precedes.
        ledger: where the wall time went, set at the end; of several completions, that of the last to end.
        sequences: what `LLM.beam_search` found, prompts included, best first; None of other requests.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    seed: int
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[LogprobsAt | None] | None = None
    num_cached_tokens: int = 0
    ledger: Ledger | None = None
    sequences: list[BeamSearchSequence] | None = None

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)


@dataclass(frozen=True)
class KVCacheUsage:
    """The use of the KV cache's blocks.

    Attributes:
        num_blocks: all.
        num_used_blocks: blocks of unfinished requests.
        num_cached_blocks: free blocks that later prompts can still find.
    """

    num_blocks: int
    num_used_blocks: int
    num_cached_blocks: int

    @property
    def share_used(self) -> float:
        return self.num_used_blocks / self.num_blocks


@dataclass
class SpeculationStatistics:
    """Counters of drafts since the engine started.

    Attributes:
        num_rounds: how many times a request had drafts in a step.
        num_drafts: drafts that were scheduled.
        num_right: of these, drafts that became output.
        right_by_position: of these, the numbers of first drafts, second drafts and so on.
        seconds: time of all decode steps, drafting included.
        won_seconds: time that drafts have saved, by measured times.
        reason: why the next step has drafts, or none.
    """

    num_rounds: int = 0
    num_drafts: int = 0
    num_right: int = 0
    right_by_position: list[int] = field(default_factory=list)
    seconds: float = 0.0
    won_seconds: float = 0.0
    reason: str = ""

    @property
    def acceptance(self) -> float:
        """Share of the drafts that became output; 0 without any."""
        return self.num_right / self.num_drafts if self.num_drafts else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens of a request in a step with drafts: at least 1."""
        return 1 + self.num_right / self.num_rounds if self.num_rounds else 1.0

    @property
    def speedup(self) -> float:
        """Against the same steps without drafts, by measured times; 1 is neither faster nor slower."""
        return 1 + self.won_seconds / self.seconds if self.seconds else 1.0
