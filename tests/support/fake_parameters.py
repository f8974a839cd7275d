"""Random weights of any shape, in memory: for decoders without a checkpoint."""

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Weights
from pellucid.backends.ops import Parameters, Weight
from pellucid.backends.row_table import MatrixRows


class FakeParameters(Parameters):
    """Gives a decoder random weights that depend on the name alone, so any two loads agree."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def make(self, weight: Weight) -> Any:
        match weight.kind:
            case "matrix" | "router":
                return self._matrix(weight)
            case "experts":
                return tuple(self._matrix(each) for each in weight.matrices)
            case "table":
                return self._weights.table(MatrixRows(_normal(weight.name, *weight.shape)))
            case "vector":
                mean = 1.0 if weight.name.endswith(".weight") else 0.0
                numbers = mean + _normal(weight.name, *weight.shape) / 4
                return self._weights.vector(weight.factor * numbers)
            case "convolution":
                return self._weights.vector(_normal(weight.name, math.prod(weight.shape)) / 2)

    def _matrix(self, weight: Weight) -> Any:
        numbers = _normal(weight.numbers, *weight.shape) * 1.5 / np.sqrt(weight.shape[1])
        bias = weight.bias
        own_bias = _normal(bias.name, *bias.shape) / 4 if weight.has_bias else None
        return self._weights.matrix(numbers, own_bias)


def _normal(name: str, *shape: int) -> npt.NDArray[Any]:
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
