"""Writes the output of --json: base units, no NaN, no infinity."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pellucid.cli.comparison import REFERENCE_LENGTH, Comparison
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine import LLMEngine
    from pellucid.outputs import Logprob, LogprobsAt, RequestMetrics, RequestOutput

_OF_AN_ANSWER = ("text", "token_ids", "finish_reason", "stop_reason", "cumulative_logprob")


def print_json(values: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Writes the object or list on stdout, in ASCII: any locale can carry it."""
    print(json.dumps(values, allow_nan=False), flush=True)


def request_object(
    engine: "LLMEngine", output: "RequestOutput", params: RequestParams
) -> dict[str, Any]:
    """A request with one answer, what it was asked for and what it cost; the best one and all of a
    beam search."""
    completion = output.outputs[0]
    found = {}
    if isinstance(params, BeamSearchParams):
        of_a_beam = ("score", *_OF_AN_ANSWER)
        found["beams"] = [
            {name: getattr(one, name) for name in of_a_beam} for one in output.outputs
        ]
    return {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        **{name: getattr(completion, name) for name in _OF_AN_ANSWER},
        "logprobs": _logprobs(completion.token_ids, completion.logprobs),
        **found,
        "seed": output.seed,
        "num_cached_tokens": output.num_cached_tokens,
        "parameters": asdict(params),
        "engine": {**asdict(engine.config), "max_model_len": engine.max_model_len},
        "metrics": metrics_object(output),
        "speculation": speculation_object(engine),
    }


def speculation_object(engine: "LLMEngine") -> dict[str, Any] | None:
    """The counters of drafts, over all requests of the engine; null if speculation is off."""
    statistics = engine.speculation
    if statistics is None:
        return None
    return {
        **asdict(statistics),
        "acceptance": statistics.acceptance,
        "tokens_per_round": statistics.tokens_per_round,
        "speedup": statistics.speedup,
    }


def comparison_object(
    comparison: Comparison, engines: "tuple[LLMEngine, LLMEngine]", params: SamplingParams
) -> dict[str, Any]:
    """Both arms in full, and what they say about each other; engines with the cache and without it."""
    arms = (comparison.cached, comparison.naive)
    return {
        "identical_tokens": comparison.identical_tokens,
        "identical_logprobs": comparison.identical_logprobs,
        "speed_ratio": [
            {"num_tokens": length, "ratio": comparison.speed_ratio(length)}
            for length in comparison.lengths(REFERENCE_LENGTH)
        ],
        "arms": [
            {
                **request_object(engine, arm.output, params),
                "use_kv_cache": arm.use_kv_cache,
                "expected_token_passes": arm.expected_token_passes,
                "seconds_by_num_tokens": [
                    {"num_tokens": length, "seconds": duration}
                    for length, duration in arm.seconds_by_length.items()
                ],
            }
            for arm, engine in zip(arms, engines, strict=True)
        ],
    }


def metrics_object(output: "RequestOutput") -> dict[str, Any]:
    """Seconds, bytes, tokens, FLOPs; null for what did not happen."""
    metrics: RequestMetrics = output.metrics
    num_tokens = len(output.outputs[0].token_ids)
    num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
    return {
        "time_to_first_token": metrics.time_to_first_token,
        "prefill_seconds": metrics.prefill_seconds,
        "prefill_tokens_per_second": _rate(num_computed, metrics.prefill_seconds),
        "decode_seconds": metrics.decode_seconds,
        "decode_tokens_per_second": _rate(num_tokens - 1, metrics.decode_seconds),
        "kv_cache_bytes": metrics.kv_cache_bytes,
        "num_processed_tokens": metrics.num_processed_tokens,
        "num_preemptions": metrics.num_preemptions,
        "flops": metrics.flops,
    }


def _logprobs(
    token_ids: list[int], logprobs: "list[LogprobsAt] | None"
) -> list[dict[str, Any]] | None:
    """For each output token its own entry and, by rank, the likeliest ones."""
    if logprobs is None:
        return None
    return [
        {
            **_logprob(token_id, at[token_id]),
            "top": [
                _logprob(other, entry)
                for other, entry in sorted(at.items(), key=lambda item: item[1].rank)
            ],
        }
        for token_id, at in zip(token_ids, logprobs, strict=True)
    ]


def _logprob(token_id: int, logprob: "Logprob") -> dict[str, Any]:
    return {
        "token_id": token_id,
        "token": logprob.decoded_token,
        "logprob": _finite(logprob.logprob),
        "final_logprob": _finite(logprob.final_logprob),
        "rank": logprob.rank,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rate(count: int, duration: float | None) -> float | None:
    return count / duration if duration and count > 0 else None
