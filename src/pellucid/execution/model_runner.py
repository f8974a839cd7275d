"""Carries a scheduled step out: arrays, forward, logits, tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pellucid.backends.base import Array, Decoder, KVCache
from pellucid.execution.forward_batch import (
    build_forward_batch,
    logits_rows,
    wants_prompt_logprobs,
)
from pellucid.execution.sampler import SampledToken, Sampler, SamplingRow, TokenLogprobs
from pellucid.scheduling.scheduler import ScheduledRequest


@dataclass(frozen=True)
class StepResult:
    """What a step gave each request, by request id."""

    sampled: dict[str, SampledToken] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[str, ValueError] = field(default_factory=dict)  # requests that failed, alone


class ModelRunner:
    """Owns the decoder and its KV cache.

    Args:
        decoder: the model.
        kv_cache: the arrays behind the block ids of the scheduler.
        block_size: tokens per block.
        sampler: chooses tokens.
    """

    def __init__(
        self, decoder: Decoder, kv_cache: KVCache, block_size: int, sampler: Sampler
    ) -> None:
        self.decoder = decoder
        self.kv_cache = kv_cache
        self.block_size = block_size
        self.sampler = sampler

    def execute(self, scheduled: Sequence[ScheduledRequest]) -> StepResult:
        """Computes the shares of one step; `scheduled` may be empty."""
        result = StepResult()
        if not scheduled:
            return result
        batch = build_forward_batch(scheduled, self.block_size)
        logits = self.decoder.forward(batch, self.kv_cache)  # [R, V]
        first = 0
        for share in scheduled:
            rows = logits_rows(share)
            own = logits[first : first + len(rows)]
            first += len(rows)
            try:
                self._read(share, own, result)
            except ValueError as error:
                result.errors[share.request.request_id] = error
        return result

    def _read(self, share: ScheduledRequest, logits: Array, result: StepResult) -> None:
        """Takes a request's tokens and log-probabilities from its own rows of logits."""
        request = share.request
        if wants_prompt_logprobs(share):
            # The row at position p predicts the token at p + 1; the last one's is sampled below.
            following = request.token_ids(share.start + 1, share.end + 1)
            num_top = request.params.prompt_logprobs
            assert num_top is not None
            result.prompt_logprobs[request.request_id] = self.sampler.prompt_logprobs(
                logits[: len(following)], following, num_top
            )
        if share.samples:
            row = SamplingRow(
                params=request.params,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                seed=request.seed,
                stream=request.stream,
                stop_token_ids=request.stop_token_ids,
                bad_words_token_ids=request.bad_words_token_ids,
            )
            result.sampled[request.request_id] = self.sampler.sample(logits[-1], row)
