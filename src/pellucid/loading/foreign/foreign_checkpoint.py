"""The tensors of a checkpoint that another quantizer wrote: a matrix is one of them, whatever arrays it has."""

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import BF16, MatrixFormat
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.foreign.arrays import FindMatrices, ForeignMatrix
from pellucid.loading.matrix_checkpoint import MatrixCheckpoint


class ForeignCheckpoint(MatrixCheckpoint[ForeignMatrix]):
    """A `TensorSource`: quantized matrices under the names that floats would have, and all other tensors.

    Args:
        checkpoint: the arrays.
        find_matrices: knows which arrays are a matrix.

    Raises:
        ValueError: the arrays of a matrix do not fit together, or there is no matrix.
    """

    def __init__(self, checkpoint: Checkpoint, find_matrices: FindMatrices) -> None:
        super().__init__(checkpoint, find_matrices(checkpoint))
        if not self._matrices:
            raise ValueError(
                f"{self.location}: its configuration says how weights are quantized, but no tensor is quantized so"
            )

    def matrix_format(self, name: str) -> MatrixFormat:
        """The format to which the matrix `name` is converted."""
        if (matrix := self._matrices.get(name)) is None:
            return self._checkpoint.matrix_format(name)
        return matrix.format or BF16

    def tensor(self, name: str) -> UniformMatrix:
        """The tensor `name`: codes of one of pellucid's formats, or floats."""
        matrix = self._matrices.get(name)
        return self._checkpoint.tensor(name) if matrix is None else matrix.read()
