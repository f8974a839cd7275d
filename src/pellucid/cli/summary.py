"""The line that ends an answer: how long, how fast, how much memory, why it stopped."""

from dataclasses import fields
from typing import TYPE_CHECKING

from pellucid.cli.options import SamplingOptions
from pellucid.cli.units import num_bytes, rate, seconds
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine import LLMEngine
    from pellucid.outputs import RequestOutput

_NEUTRAL = SamplingParams()
_SHOWN_IF_SET = tuple(
    field.name for field in fields(SamplingOptions) if field.name not in ("temperature", "seed")
)


def done_line(engine: "LLMEngine", output: "RequestOutput", params: SamplingParams) -> str:
    """What a request cost and what it takes to repeat it."""
    metrics = output.metrics
    num_tokens = len(output.outputs[0].token_ids)
    parts = []
    if metrics.time_to_first_token is not None:
        parts.append(f"first token {seconds(metrics.time_to_first_token)}")
        num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
        parts.append(
            f"prefill {_tokens(num_computed)} {rate(num_computed, metrics.prefill_seconds)}"
            f" ({output.num_cached_tokens} cached)"
        )
    if num_tokens > 1:
        # The first token is prefill's.
        decode_rate = rate(num_tokens - 1, metrics.decode_seconds)
        parts.append(f"decode {_tokens(num_tokens - 1)} {decode_rate}")
    parts.append(f"KV cache {num_bytes(metrics.kv_cache_bytes)}")
    if metrics.num_preemptions:
        parts.append(f"preempted {metrics.num_preemptions}x")
    parts.append(f"stop: {stop_reason(engine, output, params)}")
    parts.append(sampling(params, output.seed))
    return "done: " + " · ".join(parts)


def stop_reason(engine: "LLMEngine", output: "RequestOutput", params: SamplingParams) -> str:
    """Why an answer ended, in words."""
    completion = output.outputs[0]
    reason = completion.stop_reason
    if completion.finish_reason == "abort":
        return "Ctrl-C"
    if completion.finish_reason == "error":
        return f"error: {reason}"
    if isinstance(reason, int):
        kind = "stop" if reason in params.stop_token_ids else "end"
        return f"{kind} token {reason} ({engine.tokenizer.token_text(reason)})"
    if completion.finish_reason == "stop":
        return f"stop string {reason!r}"
    limits = {
        "max_tokens": f"max_tokens {params.max_tokens}",
        "context_length": f"context of {engine.max_model_len} tokens is full",
        "max_time": f"max_time {params.max_time} s",
    }
    assert isinstance(reason, str)
    return limits[reason]


def sampling(params: SamplingParams, seed: int | None) -> str:
    """What chooses the tokens, so that it can be given again; None for a seed that is to be drawn."""
    penalties_and_cuts = [
        f"{name} {getattr(params, name):g}"
        for name in _SHOWN_IF_SET
        if getattr(params, name) != getattr(_NEUTRAL, name)
    ]
    if params.temperature == 0:
        return ", ".join(["greedy", *penalties_and_cuts])
    drawn = "drawn for each answer" if seed is None else seed
    return ", ".join([f"temperature {params.temperature:g}", *penalties_and_cuts, f"seed {drawn}"])


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
