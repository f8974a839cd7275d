"""Tokens and times of a request, in the words of OpenAI and llama.cpp."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from pellucid.outputs import RequestOutput
from pellucid.server.streaming import Progress


def usage_of(
    outputs: Sequence[RequestOutput], num_completion_tokens: int, num_reasoning_tokens: int
) -> dict[str, Any]:
    """The tokens of a request.

    Args:
        outputs: one for each prompt; several answers to one prompt compute it once.
        num_completion_tokens: of all answers that the client gets.
        num_reasoning_tokens: of these, those that are reasoning.
    """
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    num_cached_tokens = sum(output.num_cached_tokens for output in outputs)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
    }


def timings_of(outputs: Sequence[RequestOutput]) -> dict[str, float] | UnsetType:
    """Where the time of a request with one prompt went, by llama.cpp's names; those of several prompts overlap and have
    no meaning."""
    if len(outputs) != 1:
        return UNSET
    output = outputs[0]
    metrics = output.metrics
    prompt_seconds = metrics.prefill_seconds or 0.0
    decode_seconds = metrics.decode_seconds or 0.0
    started = metrics.first_scheduled_time
    num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
    num_predicted = sum(len(completion.token_ids) for completion in output.outputs)
    num_decoded = max(0, num_predicted - len(output.outputs))  # the first ones came with the prompt
    return {
        "queue_ms": 0.0 if started is None else (started - metrics.arrival_time) * 1e3,
        "cache_n": output.num_cached_tokens,
        "prompt_n": num_computed,
        "prompt_ms": prompt_seconds * 1e3,
        "prompt_per_token_ms": _ratio(prompt_seconds * 1e3, num_computed),
        "prompt_per_second": _ratio(num_computed, prompt_seconds),
        "predicted_n": num_predicted,
        "predicted_ms": decode_seconds * 1e3,
        "predicted_per_token_ms": _ratio(decode_seconds * 1e3, num_decoded),
        "predicted_per_second": _ratio(num_decoded, decode_seconds),
    }


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def prompt_progress(progress: Progress) -> dict[str, Any]:
    """llama.cpp's object of progress, with the position in the queue."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
        "queue_position": progress.queue_position,
    }
