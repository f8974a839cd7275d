"""A matrix that stays in its file: a step reads the rows of its tokens."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.ops import HostArray, IntArray


class RowTable(Protocol):
    """The rows of a matrix [N, M]; `Ops.embed` takes it for a table."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def read(self, rows: IntArray) -> npt.NDArray[Any]:
        """The rows with these numbers [T] as floats, [T, M].

        Raises:
            IndexError: there is no such row.
        """
        ...


class MatrixRows(Struct, frozen=True):
    """The rows of a matrix whose arrays are views of a file, or in memory."""

    matrix: UniformMatrix

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_columns = self.matrix.shape
        return num_rows, num_columns

    def read(self, rows: IntArray) -> npt.NDArray[Any]:
        if isinstance(self.matrix, np.ndarray):
            return np.asarray(self.matrix[rows])
        return self.matrix.rows(rows).dequantize()


class TableInFile(Struct, frozen=True):
    """The handle that `Weights.table` makes for `Ops.embed`."""

    rows: RowTable


def embed_rows(
    table: RowTable, rows: IntArray, scale: float, dtype: type[np.floating[Any]] = np.float32
) -> HostArray:
    """`Ops.embed` from a table in a file: [T] -> [T, M]."""
    return np.asarray(table.read(rows).astype(dtype) * dtype(scale))
