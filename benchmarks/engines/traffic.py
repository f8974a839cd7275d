"""Requests of mixed lengths, the same for every engine, and the arrival times of their tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

PROMPT_TOKENS = (32, 1024)  # from, to
OUTPUT_TOKENS = (16, 256)
MAX_POSITIONS = PROMPT_TOKENS[1] + OUTPUT_TOKENS[1]


@dataclass(frozen=True)
class TrafficRequest:
    """A prompt and how many tokens to answer it with, whatever they are."""

    prompt_token_ids: list[int]
    num_output_tokens: int


def mixed_traffic(num_requests: int) -> list[TrafficRequest]:
    """The first `num_requests` of one endless sequence: lengths are uniform, no two prompts share a
    beginning."""
    rng = random.Random(0)
    return [
        TrafficRequest(
            [rng.randrange(1000, 40_000) for _ in range(rng.randint(*PROMPT_TOKENS))],
            rng.randint(*OUTPUT_TOKENS),
        )
        for _ in range(num_requests)
    ]


@dataclass(frozen=True)
class Served:
    """What became of requests that all arrived at time 0.

    Args:
        token_times: for each request, in seconds, when each of its tokens was there to be read.
        outside_model_seconds: of the whole run what was not the model's forward: scheduling, sampling,
            text; None where the engine does not tell.
    """

    token_times: Sequence[Sequence[float]]
    outside_model_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Until the last token of all."""
        return max(times[-1] for times in self.token_times)

    @property
    def num_output_tokens(self) -> int:
        return sum(map(len, self.token_times))

    @property
    def first_token_seconds(self) -> list[float]:
        """Of each request."""
        return [times[0] for times in self.token_times]

    @property
    def inter_token_seconds(self) -> list[float]:
        """Between each token and the next one of its request, of all requests."""
        return [later - earlier for times in self.token_times for earlier, later in pairwise(times)]
