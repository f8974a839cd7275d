"""The tensors of a checkpoint in which quantized matrices consist of several arrays."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.row_table import MatrixRows
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.safetensors_file import TensorInfo
from pellucid.loading.tensor_source import TensorFacts


class StoredMatrix(TensorFacts, Protocol):
    """A matrix before it is read."""

    @property
    def arrays(self) -> tuple[str, ...]:
        """Their names in the checkpoint; the first holds the codes."""
        ...


MatrixT = TypeVar("MatrixT", bound=StoredMatrix)


class MatrixCheckpoint(ABC, Generic[MatrixT]):
    """The part of a `TensorSource` that knows the names: those of matrices, and of all other tensors.

    Args:
        checkpoint: the arrays.
        matrices: by the names that floats would have.
    """

    def __init__(self, checkpoint: Checkpoint, matrices: Mapping[str, MatrixT]) -> None:
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

    def info(self, name: str) -> MatrixT | TensorInfo:
        """Shape and bytes of the tensor `name`."""
        return self._matrices.get(name) or self._checkpoint.info(name)

    def path(self, name: str) -> Path:
        """The file that holds the tensor `name`, or its codes."""
        return self._checkpoint.path(self._arrays(name)[0])

    @abstractmethod
    def tensor(self, name: str) -> UniformMatrix:
        """The tensor `name`."""

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
