"""Random weights of any shape, in memory: for decoders without a checkpoint."""

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Weights
from pellucid.backends.ops import Matrix, MatrixStack, Vector
from pellucid.backends.row_table import MatrixRows


class FakeParameters:
    """Gives a decoder random weights that depend on the name alone, so any two loads agree."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def matrix(
        self,
        name: str,
        num_rows: int,
        num_columns: int,
        bias: bool = False,
        parts: tuple[int, ...] = (),
    ) -> Matrix:
        weight = _normal(f"{name}.weight", num_rows, num_columns) * 1.5 / np.sqrt(num_columns)
        return self._weights.matrix(weight, _normal(f"{name}.bias", num_rows) / 4 if bias else None)

    def router(self, name: str, num_experts: int, num_columns: int, bias: bool = False) -> Matrix:
        return self.matrix(name, num_experts, num_columns, bias)

    def experts(
        self, name: str, num_experts: int, num_rows: int, num_columns: int, bias: bool = False
    ) -> MatrixStack:
        return tuple(
            self.matrix(f"{name}.{expert}", num_rows, num_columns, bias)
            for expert in range(num_experts)
        )

    def table(self, name: str, num_rows: int, num_columns: int) -> Matrix:
        return self._weights.table(MatrixRows(_normal(name, num_rows, num_columns)))

    def vector(self, name: str, size: int, scale: float = 1.0) -> Vector:
        mean = 1.0 if name.endswith(".weight") else 0.0
        return self._weights.vector(scale * (mean + _normal(name, size) / 4))

    def convolution(self, name: str, num_channels: int, kernel_size: int) -> Vector:
        return self._weights.vector(_normal(name, kernel_size * num_channels) / 2)


def _normal(name: str, *shape: int) -> npt.NDArray[Any]:
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
