"""Layers of random experts, for tests of routers and expert_mlp."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Backend


@dataclass(frozen=True)
class ExpertCase:
    """E experts of width N over rows of M numbers; weights as loading hands them to a backend.

    Args:
        gate: [N, M] of each expert.
        up: [N, M] of each expert.
        down: [M, N] of each expert.
        biases: of each of these matrices; None: they have none.
    """

    gate: list[Any]
    up: list[Any]
    down: list[Any]
    biases: list[list[npt.NDArray[Any]]] | None = None

    def handles(self, backend: Backend) -> list[tuple[Any, ...]]:
        """gate, up, down as expert_mlp takes them."""
        stacks = (self.gate, self.up, self.down)
        biases = self.biases or [[None] * len(stack) for stack in stacks]
        return [
            backend.weights.stack(map(backend.weights.matrix, stack, stack_biases))
            for stack, stack_biases in zip(stacks, biases, strict=True)
        ]


def random_experts(rng, num_experts, width, hidden, store=lambda weight: weight, has_bias=False):
    """An `ExpertCase` whose matrices are store(floats [N, K])."""
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    stacks = [
        [store(rng.normal(0, shape[1] ** -0.5, shape)) for _ in range(num_experts)]
        for shape in shapes
    ]
    biases = [[rng.normal(size=shape[0]) for _ in range(num_experts)] for shape in shapes]
    return ExpertCase(*stacks, biases if has_bias else None)


def random_choice(rng, num_tokens, num_experts, num_chosen):
    """Weights [T, E] of f32, at most num_chosen of a row not 0."""
    weights = np.zeros((num_tokens, num_experts), np.float32)
    for row in weights:
        chosen = rng.permutation(num_experts)[: rng.integers(1, num_chosen + 1)]
        row[chosen] = rng.uniform(0.1, 1, len(chosen))
    return weights
