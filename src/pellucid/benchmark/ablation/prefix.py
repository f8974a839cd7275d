"""What finding computed blocks again is worth, and what looking for them costs."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pellucid.benchmark.ablation.requests import random_prompt
from pellucid.config import EngineConfig
from pellucid.engine import LLMEngine
from pellucid.loaded_model import LoadedModel
from pellucid.sampling_params import SamplingParams

PROMPT_TOKENS = 2000
QUESTION_TOKENS = 16  # at the end of the prompt, different each time
NUM_ROUNDS = 3


@dataclass(frozen=True)
class PrefixResult:
    """Medians, in seconds.

    Args:
        num_prompt_tokens: of the prompt, whose last tokens are new each time.
        num_cached_tokens: of them, found when it came again.
        first_token_without: with prefix caching off.
        first_token_again: with it on, when all but the end has been seen.
        unshared_without: for prompts that share nothing, prefix caching off.
        unshared_with: the same with it on: what looking costs.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    first_token_without: float
    first_token_again: float
    unshared_without: float
    unshared_with: float

    @property
    def hit_rate(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens


def measure_prefix(model: LoadedModel, config: EngineConfig) -> PrefixResult:
    """Runs engines with and without prefix caching in turn, on prompts of 2000 tokens, or less where the context
    is shorter.

    Args:
        config: `enable_prefix_caching` is set here.
    """
    without, with_cache = (
        LLMEngine(replace(config, enable_prefix_caching=enabled), model)
        for enabled in (False, True)
    )
    num_tokens = min(PROMPT_TOKENS, with_cache.max_model_len - 1)
    rng = np.random.default_rng(0)

    def strange(num_tokens: int) -> tuple[int, ...]:
        return random_prompt(rng, num_tokens, model.config.vocab_size)

    shared = strange(num_tokens - QUESTION_TOKENS)
    first_token(with_cache, shared)
    off: list[float] = []
    again: list[FirstToken] = []
    unshared_off: list[float] = []
    unshared_on: list[float] = []
    for _ in range(NUM_ROUNDS):
        question = shared + strange(QUESTION_TOKENS)
        off.append(first_token(without, question).seconds)
        again.append(first_token(with_cache, question))
        unknown = strange(num_tokens)
        unshared_off.append(first_token(without, unknown).seconds)
        unshared_on.append(first_token(with_cache, unknown).seconds)
    return PrefixResult(
        num_tokens,
        again[0].num_cached_tokens,
        statistics.median(off),
        statistics.median(each.seconds for each in again),
        statistics.median(unshared_off),
        statistics.median(unshared_on),
    )


@dataclass(frozen=True)
class FirstToken:
    seconds: float
    num_cached_tokens: int


def first_token(engine: LLMEngine, prompt_token_ids: Sequence[int]) -> FirstToken:
    """Of a request that is alone."""
    start = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    output = engine.add_request(list(prompt_token_ids), params)
    while engine.has_unfinished_requests:
        engine.step()
    return FirstToken(time.perf_counter() - start, output.num_cached_tokens)
