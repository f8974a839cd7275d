"""Compares a run with the KV cache and a run without: the numbers only."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pellucid.facts import formulas

if TYPE_CHECKING:
    from pellucid.outputs import RequestOutput

REFERENCE_LENGTH = 512  # tokens: the length at which speeds are quoted, if the text gets there
MEDIAN_WIDTH = 9  # neighbouring tokens over whose times the median is taken, so that one late step does not count


@dataclass(frozen=True)
class Arm:
    """One of the two runs."""

    label: str
    use_kv_cache: bool
    output: "RequestOutput"

    @property
    def interrupted(self) -> bool:
        return self.output.outputs[0].finish_reason == "abort"

    @property
    def num_output_tokens(self) -> int:
        return len(self.output.outputs[0].token_ids)

    @property
    def expected_token_passes(self) -> int:
        """`num_processed_tokens` by the formula."""
        return formulas.token_passes(
            len(self.output.prompt_token_ids), self.num_output_tokens, self.use_kv_cache
        )

    @property
    def total_seconds(self) -> float:
        """From the first step to the last token."""
        metrics = self.output.metrics
        return (metrics.prefill_seconds or 0.0) + (metrics.decode_seconds or 0.0)

    @property
    def seconds_by_length(self) -> dict[int, float]:
        """By the number of tokens in the text, the time that the next token took; the first output
        token is left out, which is prefill's."""
        times = self.output.metrics.token_times
        first = len(self.output.prompt_token_ids) + 1
        return {
            first + index: after - before for index, (before, after) in enumerate(pairwise(times))
        }

    def seconds_at(self, length: int) -> float:
        """Median of `seconds_by_length` around a length that it has."""
        by_length = self.seconds_by_length
        last = max(by_length)
        end = min(length + MEDIAN_WIDTH // 2, last)
        nearby = range(max(end - MEDIAN_WIDTH + 1, min(by_length)), end + 1)
        return statistics.median(by_length[near] for near in nearby)


@dataclass(frozen=True)
class Comparison:
    """The same prompt, parameters and seed in both arms."""

    cached: Arm
    naive: Arm

    @property
    def complete(self) -> bool:
        """Whether both runs ended by themselves."""
        return not (self.cached.interrupted or self.naive.interrupted)

    @property
    def num_common(self) -> int:
        """Output tokens to compare: all, unless an arm was stopped."""
        return min(self.cached.num_output_tokens, self.naive.num_output_tokens)

    @property
    def first_difference(self) -> int | None:
        """Index of the first output token that is not the same."""
        pairs = zip(self._token_ids(self.cached), self._token_ids(self.naive), strict=True)
        return next((index for index, (a, b) in enumerate(pairs) if a != b), None)

    @property
    def identical_tokens(self) -> bool:
        same_length = self.cached.num_output_tokens == self.naive.num_output_tokens
        return self.first_difference is None and (same_length or not self.complete)

    @property
    def identical_logprobs(self) -> bool:
        """Whether the log-probabilities of the chosen tokens agree to the last bit."""
        return self._chosen_logprobs(self.cached) == self._chosen_logprobs(self.naive)

    def speed_ratio(self, length: int) -> float:
        """How many times faster the cache makes the token after `length` tokens."""
        return self.naive.seconds_at(length) / self.cached.seconds_at(length)

    def lengths(self, *wanted: int) -> Sequence[int]:
        """Lengths of text to report: those of `wanted` that both arms reached, and a quarter, half and all
        of the way, unless they are within a tenth of those. Empty if there was no decode."""
        common = self.cached.seconds_by_length.keys() & self.naive.seconds_by_length.keys()
        if not common:
            return ()
        first, last = min(common), max(common)
        spread = [first + (last - first) * quarters // 4 for quarters in (1, 2, 4)]
        reached = common & set(wanted)
        near = {
            length for length in spread if any(abs(length - each) < each / 10 for each in reached)
        }
        return sorted({*spread} - near | reached)

    @property
    def quoted_length(self) -> int | None:
        """Where the speed is quoted: at `REFERENCE_LENGTH`, or where the text ends before it."""
        lengths = self.lengths(REFERENCE_LENGTH)
        if REFERENCE_LENGTH in lengths:
            return REFERENCE_LENGTH
        return lengths[-1] if lengths else None

    def _token_ids(self, arm: Arm) -> list[int]:
        return arm.output.outputs[0].token_ids[: self.num_common]

    def _chosen_logprobs(self, arm: Arm) -> list[float]:
        completion = arm.output.outputs[0]
        assert completion.logprobs is not None
        return [
            at[token_id].logprob
            for token_id, at in zip(completion.token_ids, completion.logprobs, strict=True)
        ][: self.num_common]
