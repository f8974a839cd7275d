"""The arrays of one matrix in a checkpoint that another quantizer wrote: found, and checked before they are read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.facts.json_object import JsonObject
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.matrix_checkpoint import FindMatrices, Matrices, StoredMatrix
from pellucid.loading.safetensors_file import TensorInfo

FLOATS = ("F16", "BF16", "F32")
_MAX_BITS = 1 << 24


@dataclass(frozen=True)
class Arrays:
    """The arrays `module` + suffix of one matrix.

    Args:
        checkpoint: all arrays.
        module: what their names begin with.
        method: of quantization, for messages.
    """

    checkpoint: Checkpoint
    module: str
    method: str

    def has(self, suffix: str) -> bool:
        return self.module + suffix in self.checkpoint

    def shape(self, suffix: str, dtypes: tuple[str, ...], num_dims: int) -> tuple[int, ...]:
        """Of an array of one of `dtypes` with `num_dims` dimensions.

        Raises:
            ValueError: it is missing, or is another one.
        """
        info = self._info(suffix)
        if info.dtype not in dtypes or len(info.shape) != num_dims or 0 in info.shape:
            raise self.error(suffix, f"{' or '.join(dtypes)} of {num_dims} dimensions")
        return info.shape

    def check(self, suffix: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> None:
        """Raises a ValueError for an array that is missing, or has none of `dtypes` or none of `shapes`."""
        info = self._info(suffix)
        if info.dtype not in dtypes or info.shape not in shapes:
            sizes = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(suffix, f"{' or '.join(dtypes)} {sizes}")

    def error(self, suffix: str, wanted: str) -> ValueError:
        name = self.module + suffix
        info = self.checkpoint.info(name)
        return ValueError(
            f"{self.path(suffix)}: tensor {name} is {info.dtype} {list(info.shape)}:"
            f" {self.method} needs {wanted}"
        )

    def path(self, suffix: str) -> Path:
        """The file of an array."""
        return self.checkpoint.path(self.module + suffix)

    def array(self, suffix: str) -> npt.NDArray[Any]:
        return self.checkpoint.array(self.module + suffix)

    def matrix(
        self,
        suffixes: tuple[str, ...],
        shape: tuple[int, ...],
        weight_format: IntegerFormat | None,
        read: Callable[[], UniformMatrix],
        name: str | None = None,
    ) -> StoredMatrix:
        """The matrix of the arrays `suffixes`, as far as they are there. `name` is that of the module's weight, if it
        is left out."""
        names = tuple(self.module + suffix for suffix in suffixes if self.has(suffix))
        num_bytes = sum(self.checkpoint.info(name).num_bytes for name in names)
        name = f"{self.module}.weight" if name is None else name
        return StoredMatrix(name, names, shape, weight_format, num_bytes, read)

    def _info(self, suffix: str) -> TensorInfo:
        name = self.module + suffix
        if name not in self.checkpoint:
            raise ValueError(
                f"{self.checkpoint.location}: tensor {name} is missing: {self.method} has one for each matrix"
            )
        return self.checkpoint.info(name)


def matrices_with(suffix: str, method: str, find: Callable[[Arrays], StoredMatrix]) -> FindMatrices:
    """What finds a matrix in each module that has an array `suffix`.

    Args:
        method: of quantization, for messages.
        find: the matrix of a module, whose arrays it checks.
    """

    def find_all(checkpoint: Checkpoint) -> Matrices:
        modules = (name.removesuffix(suffix) for name in checkpoint if name.endswith(suffix))
        matrices = (find(Arrays(checkpoint, module, method)) for module in modules)
        return {matrix.name: matrix for matrix in matrices}

    return find_all


def outputs_and_inputs(settings: JsonObject, key: str) -> tuple[int, int]:
    """A list of two whole numbers: of a matrix, or of the block of it that shares a scale."""
    rows, columns = settings.numbers(key, 2)
    if not (rows.is_integer() and columns.is_integer()):
        raise settings.error(key, "must be two whole numbers")
    return int(rows), int(columns)


def rounded_to_f16(scales: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Scales as our formats store them."""
    with np.errstate(over="ignore"):  # an infinity is found later, by name
        return scales.astype(np.float16)


def unpacked_codes(stream: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """[R, B] bytes, a stream of codes whose first has the lowest bits -> [R, 8 * B / bits] codes."""
    codes = np.empty((len(stream), 8 * stream.shape[1] // bits), np.uint8)
    # Some rows at a time, so that single bits take little memory.
    num_rows = max(1, _MAX_BITS // (8 * stream.shape[1]))
    for start in range(0, len(stream), num_rows):
        rows = slice(start, start + num_rows)
        singles = np.unpackbits(stream[rows], axis=1, bitorder="little")
        singles = singles.reshape(len(singles), -1, bits)
        codes[rows] = np.packbits(singles, axis=2, bitorder="little")[:, :, 0]
    return codes
