"""A weight matrix whose rows have different formats."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.quantization.blocks import BlockMatrix, concatenate_blocks
from pellucid.backends.quantization.matrix import QuantizedMatrix, concatenate_rows

UniformMatrix: TypeAlias = npt.NDArray[Any] | QuantizedMatrix | BlockMatrix


class JoinedMatrix(Struct, frozen=True):
    """The rows of several matrices [N_i, K], one after the other: for q, k and v that a file stores in different
    formats and a decoder uses as one matrix.

    Args:
        parts: at least two; neighbours differ in format.
    """

    parts: tuple[UniformMatrix, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def split(self, bias: npt.NDArray[Any] | None) -> list[npt.NDArray[Any] | None]:
        """The part of a bias [N] that belongs to each part."""
        if bias is None:
            return [None] * len(self.parts)
        ends = np.cumsum([part.shape[0] for part in self.parts])
        return list(np.split(bias, ends[:-1]))


WeightMatrix: TypeAlias = UniformMatrix | JoinedMatrix


def rows_of(matrix: UniformMatrix, index: Any) -> UniformMatrix:
    """The rows that `index` selects, a slice or an array of row numbers."""
    return np.asarray(matrix[index]) if isinstance(matrix, np.ndarray) else matrix.rows(index)


def in_arrays(matrix: UniformMatrix) -> npt.NDArray[Any] | QuantizedMatrix:
    """The same numbers, blocks unpacked."""
    return matrix.unpacked() if isinstance(matrix, BlockMatrix) else matrix


def join_matrices(parts: Sequence[UniformMatrix]) -> WeightMatrix:
    """The rows of all parts, no value changed: those of neighbours in one format become one matrix."""
    runs: list[list[UniformMatrix]] = []
    for part in parts:
        if runs and _have_one_format(runs[-1][0], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    joined = tuple(_concatenate(run) for run in runs)
    return joined[0] if len(joined) == 1 else JoinedMatrix(joined)


def _have_one_format(a: UniformMatrix, b: UniformMatrix) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray)  # floats become the widest
    return a.format == b.format


def _concatenate(run: Sequence[UniformMatrix]) -> UniformMatrix:
    if len(run) == 1:
        return run[0]
    blocks = [part for part in run if isinstance(part, BlockMatrix)]
    if len(blocks) == len(run):
        return concatenate_blocks(blocks)
    arrays = [in_arrays(part) for part in run]
    if matrices := [part for part in arrays if isinstance(part, QuantizedMatrix)]:
        return concatenate_rows(matrices)
    return np.concatenate([part for part in arrays if isinstance(part, np.ndarray)])
