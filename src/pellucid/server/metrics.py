"""Counts requests, tokens and times for /metrics, by vLLM's names with vLLM's meaning.

Requests are counted when they end, from the times that the engine records anyway, so that counting does no
work per token.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pellucid.outputs import RequestOutput

# vLLM's bounds: dashboards compare quantiles, which depend on them
SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

FloatArray: TypeAlias = NDArray[np.float64]


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def add_all(self, values: FloatArray) -> None:
        """As `add` of each: faster for dozens of values, and slower for one."""
        places = np.searchsorted(self._bounds, values)
        for place, count in enumerate(np.bincount(places).tolist()):
            self._counts[place] += count
        self.sum += float(values.sum())

    def buckets(self) -> list[tuple[str, float]]:
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("From arrival to the first token", SECONDS),
    "vllm:inter_token_latency_seconds": ("Between two tokens of an answer", TOKEN_SECONDS),
    "vllm:e2e_request_latency_seconds": ("From arrival to the end", REQUEST_SECONDS),
    "vllm:request_queue_time_seconds": ("From arrival to the first step", REQUEST_SECONDS),
    "vllm:request_prefill_time_seconds": (
        "From the first step to the first token",
        REQUEST_SECONDS,
    ),
    "vllm:request_decode_time_seconds": ("From the first token to the last", REQUEST_SECONDS),
    "vllm:request_prompt_tokens": ("Tokens of a prompt", TOKENS),
    "vllm:request_generation_tokens": ("Tokens of the completions of a prompt", TOKENS),
}
COUNTERS = {
    "vllm:prompt_tokens": "Prompt tokens of requests that have ended",
    "vllm:generation_tokens": "Output tokens of requests that have ended",
    "vllm:prefix_cache_queries": "Prompt tokens that were looked for in the prefix cache",
    "vllm:prefix_cache_hits": "Prompt tokens that were found in the prefix cache",
    "vllm:prompt_tokens_cached": "Prompt tokens that were not computed again",
    "vllm:num_preemptions": "Requests that gave their blocks back to others",
}


class Metrics:
    """Counts requests that have ended since the server started."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()  # completions, by finish_reason
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}

    def count(self, outputs: Iterable[RequestOutput]) -> None:
        """Counts a request that has ended, or whose client went away.

        Args:
            outputs: one for each of its prompts.
        """
        for output in outputs:
            self._count(output)

    def _count(self, output: RequestOutput) -> None:
        metrics = output.metrics
        num_prompt_tokens = len(output.prompt_token_ids)
        num_output_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        if metrics.first_scheduled_time is not None:
            self.counters["vllm:prompt_tokens"] += num_prompt_tokens
            self.counters["vllm:prefix_cache_queries"] += num_prompt_tokens
            self.counters["vllm:prefix_cache_hits"] += output.num_cached_tokens
            self.counters["vllm:prompt_tokens_cached"] += output.num_cached_tokens
            queued = metrics.first_scheduled_time - metrics.arrival_time
            self._add("vllm:request_queue_time_seconds", queued)
            self._add("vllm:request_prompt_tokens", num_prompt_tokens)
        self.counters["vllm:generation_tokens"] += num_output_tokens
        self.counters["vllm:num_preemptions"] += metrics.num_preemptions
        for completion in output.outputs:
            self.finished[completion.finish_reason or "abort"] += 1
        self._add("vllm:request_generation_tokens", num_output_tokens)
        self._add("vllm:time_to_first_token_seconds", metrics.time_to_first_token)
        self._add("vllm:request_prefill_time_seconds", metrics.prefill_seconds)
        self._add("vllm:request_decode_time_seconds", metrics.decode_seconds)
        if metrics.finished_time is not None:
            self._add(
                "vllm:e2e_request_latency_seconds", metrics.finished_time - metrics.arrival_time
            )
        if len(output.outputs) == 1:
            gaps = np.diff(np.array(metrics.token_times))
            self.histograms["vllm:inter_token_latency_seconds"].add_all(gaps)

    def _add(self, name: str, value: float | None) -> None:
        if value is not None:
            self.histograms[name].add(value)
