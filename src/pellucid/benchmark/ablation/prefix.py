"""Prefix caching: what a hit saves, and what the look-up costs."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pellucid.benchmark.ablation.requests import random_prompt
from pellucid.engine import LLMEngine
from pellucid.facts.kv_groups import block_needs
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel

PROMPT_TOKENS = 2000
QUESTION_TOKENS = 16  # at the end of the prompt, different each time
NUM_ROUNDS = 5


@dataclass(frozen=True)
class PrefixResult:
    """Medians, in seconds.

    Args:
        num_prompt_tokens: of every prompt.
        num_cached_tokens: tokens found in the cache for a prompt whose beginning was computed before.
        off: time to first token with prefix caching off.
        unseen: with prefix caching on, for a prompt that shares nothing: includes the cost of looking up.
        seen: with prefix caching on, for a prompt whose beginning was computed before.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    off: float
    unseen: float
    seen: float


def measure_prefix(model: LoadedModel, config: EngineConfig, max_model_len: int) -> PrefixResult:
    """Runs engines with and without prefix caching in turn, on prompts of 2000 tokens, or less where the context
    is shorter.

    Args:
        config: prefix caching and memory are set here: room for two prompts, so that in every round
            but the first both write to blocks that were used before, not to memory that is new.
        max_model_len: tokens of a whole context.
    """
    num_tokens = min(PROMPT_TOKENS, max_model_len - 1)
    needs = block_needs(model.config, config.block_size, config.max_num_batched_tokens)
    off, on = (
        LLMEngine(
            replace(
                config,
                enable_prefix_caching=enabled,
                max_model_len=num_tokens + 1,
                num_kv_blocks=2 * needs.most(num_tokens + 1),
            ),
            model,
        )
        for enabled in (False, True)
    )
    rng = np.random.default_rng(0)

    def unknown(num_tokens: int) -> tuple[int, ...]:
        return random_prompt(rng, num_tokens, model.config.vocab_size)

    beginning = unknown(num_tokens - QUESTION_TOKENS)
    first_token(on, beginning + unknown(QUESTION_TOKENS))
    without: list[float] = []
    unseen: list[float] = []
    seen: list[tuple[float, int]] = []
    for _ in range(NUM_ROUNDS):
        prompt = unknown(num_tokens)
        without.append(first_token(off, prompt)[0])
        seen.append(first_token(on, beginning + unknown(QUESTION_TOKENS)))
        unseen.append(first_token(on, prompt)[0])
    return PrefixResult(
        num_tokens,
        min(num_cached for _, num_cached in seen),
        statistics.median(without),
        statistics.median(unseen),
        statistics.median(seconds for seconds, _ in seen),
    )


def first_token(engine: LLMEngine, prompt_token_ids: Sequence[int]) -> tuple[float, int]:
    """Time to first token of a request that runs alone, and its cached tokens."""
    start = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    output = engine.add_request(list(prompt_token_ids), params)
    while engine.has_unfinished_requests:
        engine.step()
    return time.perf_counter() - start, output.num_cached_tokens
