"""The line that ends an answer: how long, how fast, how much memory, why it stopped."""

from dataclasses import fields
from typing import TYPE_CHECKING

from pellucid.beam_search_params import BeamSearchParams, RequestParams
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


def done_line(engine: "LLMEngine", output: "RequestOutput", params: RequestParams) -> str:
    """What a request cost and what it takes to repeat it."""
    metrics = output.metrics
    num_tokens = len(metrics.token_times)
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
    if isinstance(params, BeamSearchParams):
        parts.append(_beam_search(output, params))
    else:
        parts.append(sampling(params, output.seed))
    return "done: " + " · ".join(parts)


def stop_reason(engine: "LLMEngine", output: "RequestOutput", params: RequestParams) -> str:
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
    if reason == "context_length":
        return f"context of {engine.max_model_len} tokens is full"
    if reason == "max_tokens":
        return f"max_tokens {params.max_tokens}"
    assert reason == "max_time" and isinstance(params, SamplingParams)
    return f"max_time {params.max_time} s"


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


def _beam_search(output: "RequestOutput", params: BeamSearchParams) -> str:
    parts = [f"beam width {params.beam_width}", f"length penalty {params.length_penalty:g}"]
    if (score := output.outputs[0].score) is not None:
        parts.append(f"score {score:.4f}")
    return ", ".join(parts)


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
