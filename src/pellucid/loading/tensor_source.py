"""The interface to stored weights: tensors by name, in any file format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import JoinedMatrix, UniformMatrix, WeightMatrix
from pellucid.backends.quantization.formats import MatrixFormat
from pellucid.backends.row_table import RowTable

RowIndex: TypeAlias = slice | npt.NDArray[np.intp]
ALL = slice(None)


class TensorFacts(Protocol):
    """Facts about a tensor that are known before it is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def type_name(self) -> str:
        """How its numbers are stored, for people: "BF16", "Q4_K", "int4"."""
        ...


class TensorSource(Protocol):
    """The tensors of a checkpoint by name."""

    @property
    def location(self) -> Path:
        """The file or directory that they are all in, for messages."""
        ...

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def info(self, name: str) -> TensorFacts: ...

    def matrix_format(self, name: str) -> MatrixFormat:
        """The format in memory of the matrix `name`."""
        ...

    def path(self, name: str) -> Path:
        """The file that holds the tensor `name`."""
        ...

    def tensor(self, name: str, index: RowIndex = ALL) -> UniformMatrix:
        """The tensor `name`, perhaps a read-only view of its file.

        Args:
            index: what of it, along the first axis of its shape.

        Raises:
            ValueError: it is in a format that we do not read.
        """
        ...

    def reads_rows(self, name: str) -> bool:
        """Whether rows of the matrix `name` are read without the others."""
        ...

    def table(self, name: str) -> RowTable:
        """The rows of the matrix `name`, each of which is read when it is asked for. Raises as `tensor` does."""
        ...

    def release(self, name: str) -> None:
        """Frees the memory of the tensor `name`, which may be read again from its file."""
        ...


def select(tensor: npt.NDArray[Any], index: RowIndex) -> npt.NDArray[Any]:
    """What `index` selects along the first axis; a tensor of one number has no axis."""
    return tensor if index is ALL else np.asarray(tensor[index])


def as_floats(tensor: WeightMatrix) -> npt.NDArray[Any]:
    """The numbers that a tensor stands for."""
    if isinstance(tensor, JoinedMatrix):
        return np.concatenate([as_floats(part) for part in tensor.parts])
    return tensor if isinstance(tensor, np.ndarray) else tensor.dequantize()
