"""The tensors of a checkpoint in which quantized matrices consist of several arrays."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pellucid.backends.joined_matrix import UniformMatrix, rows_of
from pellucid.backends.quantization.formats import BF16, IntegerFormat, MatrixFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.row_table import MatrixRows
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.tensor_source import ALL, RowIndex, TensorFacts


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix before it is read.

    Args:
        name: that floats would have.
        arrays: their names in the checkpoint; the first holds the codes.
        shape: [N, K], or [experts, N, K].
        format: in memory; None: bf16.
        read: the matrix, of [experts * N, K].
    """

    name: str
    arrays: tuple[str, ...]
    shape: tuple[int, ...]
    format: IntegerFormat | None
    num_bytes: int
    read: Callable[[], UniformMatrix]

    @property
    def type_name(self) -> str:
        return "BF16" if self.format is None else self.format.name


Matrices: TypeAlias = Mapping[str, StoredMatrix]  # by name
FindMatrices: TypeAlias = Callable[[Checkpoint], Matrices]


class MatrixCheckpoint:
    """A `TensorSource`: matrices under the names that floats would have, and all other tensors.

    Args:
        checkpoint: the arrays.
        matrices: that they make up.
    """

    def __init__(self, checkpoint: Checkpoint, matrices: Matrices) -> None:
        self.location = checkpoint.location
        self._checkpoint = checkpoint
        self._matrices = matrices
        arrays = {array for matrix in matrices.values() for array in matrix.arrays}
        self._floats = dict.fromkeys(name for name in checkpoint if name not in arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._matrices or name in self._floats

    def __iter__(self) -> Iterator[str]:
        yield from self._matrices
        yield from self._floats

    def info(self, name: str) -> TensorFacts:
        """Shape and bytes of the tensor `name`."""
        return self._matrices.get(name) or self._checkpoint.info(name)

    def matrix_format(self, name: str) -> MatrixFormat:
        """The format of the matrix `name` in memory."""
        matrix = self._matrices.get(name)
        return self._checkpoint.matrix_format(name) if matrix is None else matrix.format or BF16

    def path(self, name: str) -> Path:
        """The file that holds the tensor `name`, or its codes."""
        return self._checkpoint.path(self._arrays(name)[0])

    def tensor(self, name: str, index: RowIndex = ALL) -> UniformMatrix:
        """The tensor `name`: codes of one of pellucid's formats, or floats."""
        if (matrix := self._matrices.get(name)) is None:
            return self._checkpoint.tensor(name, index)
        whole = matrix.read()  # quantizers lay out rows in ways of their own
        if index is ALL:
            return whole
        if len(matrix.shape) == 3 and isinstance(whole, QuantizedMatrix):
            num_rows = matrix.shape[1]
            numbers = np.arange(len(whole.codes)).reshape(-1, num_rows)[index]
            return whole.rows(slice(numbers[0, 0], numbers[-1, -1] + 1))
        return rows_of(whole, index)

    def reads_rows(self, name: str) -> bool:
        return name not in self._matrices

    def table(self, name: str) -> MatrixRows:
        """The rows of the matrix `name`."""
        return MatrixRows(self.tensor(name))

    def release(self, name: str) -> None:
        """Frees the memory of the tensor `name`, which may be read again from its file."""
        for array in self._arrays(name):
            self._checkpoint.release(array)

    def _arrays(self, name: str) -> tuple[str, ...]:
        matrix = self._matrices.get(name)
        return (name,) if matrix is None else matrix.arrays
