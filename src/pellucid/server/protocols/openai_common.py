"""What OpenAI's completions and chat completions have in common: sampling, usage, timings, errors."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams
from pellucid.server.errors import ApiError, ErrorShape
from pellucid.server.fields import honoured, not_served, without_effect
from pellucid.server.streaming import Progress, sse

DONE = b"data: [DONE]\n\n"


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that both routes honour. What is left out takes the model's own defaults."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None
    prompt_logprobs: int | None = None

    def sampling_params(self, defaults: SamplingParams, **others: Any) -> SamplingParams:
        """The engine's parameters.

        Args:
            defaults: the model's.
            others: fields that the two routes read in ways of their own.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        given = {name: getattr(self, name) for name in _PARAMETERS}
        given["max_time"] = self.timeout
        given |= others
        return replace(
            defaults, **{name: value for name, value in given.items() if value is not None}
        )


_PARAMETERS = tuple(
    name for name in SamplingFields.__struct_fields__ if name in SamplingParams.__dataclass_fields__
)

SAMPLING_FIELDS = (
    *honoured(
        model="the served model's name or another one that it was given; left out, the served model",
        n="answers for each prompt; bounded",
        temperature="0 is greedy; left out, the model's own default",
        top_p="see docs/sampling.md",
        top_k="0 or -1 is off",
        min_p="see docs/sampling.md",
        typical_p="see docs/sampling.md",
        repetition_penalty="see docs/sampling.md",
        presence_penalty="see docs/sampling.md",
        frequency_penalty="see docs/sampling.md",
        logit_bias="token ids to numbers in -100..100",
        allowed_token_ids="nothing else is sampled",
        bad_words="strings that are never completed",
        min_tokens="tokens before an end or stop is allowed",
        seed="the same seed gives the same answer, bit for bit",
        stop="a string or a list; matched in text, also across tokens",
        stop_token_ids="tokens that end the answer",
        include_stop_str_in_output="the text keeps the stop string",
        ignore_eos="go on after the model's own end tokens",
        skip_special_tokens="leave special tokens out of the text",
        timeout="seconds after which the answer ends, with finish_reason length",
        priority="lower is sooner; each level counts as having arrived 10 s earlier",
        cache_salt="only calls with the same one share cached prompts",
        stream="server-sent events",
        stream_options="include_usage and continuous_usage_stats",
        return_token_ids="prompt_token_ids and token_ids in the reply",
        return_progress="prompt_progress and the position in the queue before the first token",
        prompt_logprobs="log-probabilities of the prompt's tokens, in vLLM's form",
    ),
    *without_effect(
        user="it is for OpenAI's abuse detection",
        metadata="nothing is stored",
        store="nothing is stored",
        safety_identifier="it is for OpenAI's abuse detection",
        service_tier="there is one; see priority",
        prompt_cache_key="equal prompts are found by their tokens; see cache_salt",
        prompt_cache_retention="blocks stay until memory is needed",
    ),
    *not_served(
        use_beam_search="LLM.beam_search serves it",
        length_penalty="it belongs to beam search, which LLM.beam_search serves",
        logits_processors="code in a request is never run; use logit_bias, allowed_token_ids or bad_words",
        truncate_prompt_tokens="nothing is truncated; send the part of the prompt that counts",
        guided_json="use response_format",
        guided_regex="use response_format",
        guided_choice="use allowed_token_ids",
        guided_grammar="use response_format",
    ),
)


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


def usage_of(outputs: Sequence[RequestOutput], num_completion_tokens: int) -> Usage:
    """The tokens of a request.

    Args:
        outputs: one for each prompt; several answers to one prompt compute it once.
        num_completion_tokens: of all answers that the client gets.
    """
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return Usage(
        num_prompt_tokens,
        num_completion_tokens,
        num_prompt_tokens + num_completion_tokens,
        CachedTokens(sum(output.num_cached_tokens for output in outputs)),
    )


class Timings(msgspec.Struct):
    """Where a request's time went, by llama.cpp's names; milliseconds."""

    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


def timings_of(outputs: Sequence[RequestOutput]) -> Timings | msgspec.UnsetType:
    """The timings of a request with one prompt; those of several overlap and say nothing."""
    if len(outputs) != 1:
        return msgspec.UNSET
    output = outputs[0]
    metrics = output.metrics
    prompt_seconds = metrics.prefill_seconds or 0.0
    decode_seconds = metrics.decode_seconds or 0.0
    started = metrics.first_scheduled_time
    num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
    num_predicted = sum(len(completion.token_ids) for completion in output.outputs)
    num_decoded = max(0, num_predicted - len(output.outputs))  # the first ones came with the prompt
    return Timings(
        queue_ms=0.0 if started is None else (started - metrics.arrival_time) * 1e3,
        cache_n=output.num_cached_tokens,
        prompt_n=num_computed,
        prompt_ms=prompt_seconds * 1e3,
        prompt_per_token_ms=_ratio(prompt_seconds * 1e3, num_computed),
        prompt_per_second=_ratio(num_computed, prompt_seconds),
        predicted_n=num_predicted,
        predicted_ms=decode_seconds * 1e3,
        predicted_per_token_ms=_ratio(decode_seconds * 1e3, num_decoded),
        predicted_per_second=_ratio(num_decoded, decode_seconds),
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def prompt_progress(progress: Progress) -> dict[str, Any]:
    """llama.cpp's object, and what it waits behind."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
        "queue_position": progress.queue_position,
    }


def prompt_logprobs_of(output: RequestOutput) -> list[Any] | None:
    """vLLM's form: for each position a mapping from token ids."""
    if output.prompt_logprobs is None:
        return None
    return [
        at
        and {
            str(token_id): {
                "logprob": entry.logprob,
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in at.items()
        }
        for at in output.prompt_logprobs
    ]


@dataclass(frozen=True)
class ReplyFacts:
    """What every object of one reply repeats."""

    id: str
    created: int
    model: str

    @classmethod
    def of(cls, kind: str, request_id: str, model: str) -> "ReplyFacts":
        return cls(f"{kind}-{request_id}", int(time.time()), model)


def failure_frame(error: ApiError, request_id: str) -> bytes:
    """The end of a stream that failed."""
    return sse(ErrorShape.OPENAI.body(error, request_id)) + DONE
