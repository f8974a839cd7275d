"""The tensors of a checkpoint that another quantizer wrote: a matrix is one of them, whatever arrays it has."""

import math
from collections.abc import Iterator
from pathlib import Path

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.foreign.arrays import FindMatrices, ForeignMatrix
from pellucid.loading.safetensors_file import TensorInfo

_BF16_BYTES = 2


class ForeignCheckpoint:
    """A `TensorSource`: quantized matrices under the names that floats would have, and all other tensors.

    Args:
        checkpoint: the arrays.
        find_matrices: knows which arrays are a matrix.

    Raises:
        ValueError: the arrays of a matrix do not fit together, or there is no matrix.
    """

    def __init__(self, checkpoint: Checkpoint, find_matrices: FindMatrices) -> None:
        self.location = checkpoint.location
        self._checkpoint = checkpoint
        self._matrices = find_matrices(checkpoint)
        if not self._matrices:
            raise ValueError(
                f"{self.location}: config.json has a quantization_config, but no tensor is quantized so"
            )
        arrays = {array for matrix in self._matrices.values() for array in matrix.arrays}
        self._floats = [name for name in checkpoint if name not in arrays]

    def __contains__(self, name: object) -> bool:
        return name in self._matrices or name in self._floats

    def __iter__(self) -> Iterator[str]:
        yield from self._matrices
        yield from self._floats

    def info(self, name: str) -> ForeignMatrix | TensorInfo:
        """Shape and bytes of the tensor `name`."""
        return self._matrices.get(name) or self._checkpoint.info(name)

    def memory_bytes(self, name: str) -> int:
        """What the tensor `name` takes in the format that it becomes."""
        if (matrix := self._matrices.get(name)) is None:
            return self._checkpoint.memory_bytes(name)
        num_rows, num_inputs = math.prod(matrix.shape[:-1]), matrix.shape[-1]
        if matrix.format is None:
            return num_rows * num_inputs * _BF16_BYTES
        return matrix.format.num_bytes(num_rows, num_inputs)

    def path(self, name: str) -> Path:
        """The file that holds the tensor `name`, or its codes."""
        matrix = self._matrices.get(name)
        return self._checkpoint.path(name if matrix is None else matrix.arrays[0])

    def tensor(self, name: str) -> UniformMatrix:
        """The tensor `name`: codes of a format of ours, or floats."""
        matrix = self._matrices.get(name)
        return self._checkpoint.tensor(name) if matrix is None else matrix.read()

    def release(self, name: str) -> None:
        """Gives back the memory behind the tensor `name`, which may be read again."""
        matrix = self._matrices.get(name)
        for array in (name,) if matrix is None else matrix.arrays:
            self._checkpoint.release(array)
