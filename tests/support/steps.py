"""Ways to split the tokens of some requests into steps."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Step: TypeAlias = Sequence[tuple[int, int, int]]  # for each request in it: request, start, stop


def whole(lengths: Sequence[int]) -> list[Step]:
    """All requests at once in one step."""
    return [[(request, 0, length) for request, length in enumerate(lengths)]]


def chunks(length: int, size: int) -> list[Step]:
    """One request alone, `size` tokens a step."""
    return [[(0, start, min(start + size, length))] for start in range(0, length, size)]


def random_steps(lengths: Sequence[int], rng: np.random.Generator) -> list[Step]:
    """Every request from 0 to its length in random chunks, beside random others, in random order."""
    done = [0] * len(lengths)
    steps: list[Step] = []
    while unfinished := [i for i, length in enumerate(lengths) if done[i] < length]:
        step = []
        for request in rng.permutation(unfinished)[: rng.integers(1, len(unfinished) + 1)].tolist():
            longest = rng.choice([1, 5, 40])
            stop = min(lengths[request], done[request] + int(rng.integers(1, longest + 1)))
            step.append((request, done[request], stop))
            done[request] = stop
        steps.append(step)
    return steps
