"""The arrays of one matrix in a checkpoint that another quantizer wrote: found, and checked before they are read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.facts.json_object import JsonObject
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.safetensors_file import TensorInfo

FLOATS = ("F16", "BF16", "F32")
_MAX_BITS = 1 << 24


@dataclass(frozen=True)
class ForeignMatrix:
    """A weight that consists of several arrays of a checkpoint.

    Args:
        arrays: their names; the first holds the codes.
        shape: [N, K], or [experts, N, K].
        format: the weight's format in memory; None: bf16.
        read: the matrix, of [experts * N, K].
    """

    arrays: tuple[str, ...]
    shape: tuple[int, ...]
    format: IntegerFormat | None
    num_bytes: int
    read: Callable[[], UniformMatrix]

    @property
    def type_name(self) -> str:
        return "BF16" if self.format is None else self.format.name


Matrices: TypeAlias = Mapping[str, ForeignMatrix]  # by the names that floats would have
FindMatrices: TypeAlias = Callable[[Checkpoint], Matrices]


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
            f"{self.checkpoint.path(name)}: tensor {name} is {info.dtype} {list(info.shape)}:"
            f" {self.method} needs {wanted}"
        )

    def array(self, suffix: str) -> npt.NDArray[Any]:
        return self.checkpoint.array(self.module + suffix)

    def matrix(
        self,
        suffixes: tuple[str, ...],
        shape: tuple[int, ...],
        weight_format: IntegerFormat | None,
        read: Callable[[], UniformMatrix],
    ) -> ForeignMatrix:
        names = tuple(self.module + suffix for suffix in suffixes if self.has(suffix))
        num_bytes = sum(self.checkpoint.info(name).num_bytes for name in names)
        return ForeignMatrix(names, shape, weight_format, num_bytes, read)

    def _info(self, suffix: str) -> TensorInfo:
        name = self.module + suffix
        if name not in self.checkpoint:
            raise ValueError(
                f"{self.checkpoint.location}: tensor {name} is missing: {self.method} has one for each matrix"
            )
        return self.checkpoint.info(name)


def modules_with(checkpoint: Checkpoint, suffix: str, method: str) -> Iterator[Arrays]:
    """Those that have an array `suffix`."""
    for name in checkpoint:
        if name.endswith(suffix):
            yield Arrays(checkpoint, name.removesuffix(suffix), method)


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
