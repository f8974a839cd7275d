"""Requests of mixed lengths, and the time that an engine takes for them."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput

SHORTEST_PROMPT, LONGEST_PROMPT = 32, 512
SHORTEST_OUTPUT, LONGEST_OUTPUT = 16, 128


@dataclass(frozen=True)
class MixedRequest:
    """A prompt of random tokens, and the number of output tokens."""

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + self.num_output_tokens


@dataclass(frozen=True)
class Times:
    """Times, in seconds, of a set of requests that all wait at the start."""

    total: float
    median_first_token: float


def mixed_requests(
    num_requests: int, vocab_size: int, context_length: int
) -> tuple[MixedRequest, ...]:
    """The first `num_requests` of one endless series. Lengths are uniform: prompts of 32 to 512 tokens,
    outputs of 16 to 128, and less where the context is shorter.

    Raises:
        ValueError: there is not even room for the shortest.
    """
    longest_prompt = min(LONGEST_PROMPT, context_length - LONGEST_OUTPUT)
    if longest_prompt < SHORTEST_PROMPT:
        least = SHORTEST_PROMPT + LONGEST_OUTPUT
        raise ValueError(f"a context of {context_length} tokens is too short: at least {least}")
    rng = np.random.default_rng(0)
    return tuple(
        MixedRequest(
            random_prompt(rng, int(rng.integers(SHORTEST_PROMPT, longest_prompt + 1)), vocab_size),
            int(rng.integers(SHORTEST_OUTPUT, LONGEST_OUTPUT + 1)),
        )
        for _ in range(num_requests)
    )


def random_prompt(rng: np.random.Generator, num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, vocab_size, num_tokens).tolist())


def run_groups(engine: LLMEngine, groups: Sequence[Sequence[MixedRequest]]) -> Times:
    """Runs each group to its end before the next one begins.

    Args:
        engine: idle.
        groups: all of them wait from the start.
    """
    start = time.perf_counter()
    first_tokens: list[float] = []
    for group in groups:
        under_way = [_add(engine, request) for request in group]
        while engine.has_unfinished_requests:
            engine.step()
            now = time.perf_counter() - start
            started = [output for output in under_way if output.outputs[0].token_ids]
            first_tokens += [now] * len(started)
            under_way = [output for output in under_way if not output.outputs[0].token_ids]
    return Times(time.perf_counter() - start, statistics.median(first_tokens))


def _add(engine: LLMEngine, request: MixedRequest) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=request.num_output_tokens, ignore_eos=True)
    return engine.add_request(list(request.prompt_token_ids), params)
