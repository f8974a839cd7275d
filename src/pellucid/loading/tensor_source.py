"""The interface to stored weights: tensors by name, in any file format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import JoinedMatrix, UniformMatrix, WeightMatrix
from pellucid.backends.quantization.formats import MatrixFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.row_table import RowTable


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

    def tensor(self, name: str) -> UniformMatrix:
        """The tensor `name`, perhaps a read-only view of its file.

        Raises:
            ValueError: it is in a format that we do not read.
        """
        ...

    def table(self, name: str) -> RowTable:
        """The rows of the matrix `name`, each of which is read when it is asked for. Raises as `tensor` does."""
        ...

    def release(self, name: str) -> None:
        """Frees the memory of the tensor `name`, which may be read again from its file."""
        ...


def as_floats(tensor: WeightMatrix) -> npt.NDArray[Any]:
    """The numbers that a tensor stands for."""
    if isinstance(tensor, JoinedMatrix):
        return np.concatenate([as_floats(part) for part in tensor.parts])
    return tensor.dequantize() if isinstance(tensor, QuantizedMatrix) else tensor
