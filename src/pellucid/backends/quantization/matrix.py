"""A weight matrix as integer codes with scales."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.quantization.formats import BLOCK, IntegerFormat, ScaleKind


class QuantizedMatrix(Struct, frozen=True):
    """A matrix [N, K] in one of the integer formats, in the arrays that `IntegerFormat.arrays` lists.

    Args:
        format: what the codes stand for.
        num_inputs: K.
        codes: int8 [N, K], or two codes of 4 bits in a uint8 [N, ceil(K / 2)].
        scales: f16, int8 or uint8 [N, groups], or f32 [N] for one scale per output.
        zero_points: uint8 [N, groups], where the format has them.
        minimums: f16 or int8 [N, groups], where the format has them.
        scale_factors: f16 [N, blocks], by which int8 scales are multiplied.
        minimum_factors: f16 [N, blocks], likewise.
    """

    format: IntegerFormat
    num_inputs: int
    codes: npt.NDArray[np.integer[Any]]
    scales: npt.NDArray[Any]
    zero_points: npt.NDArray[np.uint8] | None = None
    minimums: npt.NDArray[Any] | None = None
    scale_factors: npt.NDArray[np.float16] | None = None
    minimum_factors: npt.NDArray[np.float16] | None = None

    def __post_init__(self) -> None:
        actual = {name: (array.dtype, array.shape) for name, array in self.arrays.items()}
        assert actual == self.format.arrays(len(self.codes), self.num_inputs), actual

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By the names of `IntegerFormat.arrays`."""
        arrays = {
            "codes": self.codes,
            "scales": self.scales,
            "zero_points": self.zero_points,
            "minimums": self.minimums,
            "scale_factors": self.scale_factors,
            "minimum_factors": self.minimum_factors,
        }
        return {name: array for name, array in arrays.items() if array is not None}

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.codes), self.num_inputs

    @property
    def num_bytes(self) -> int:
        return self.format.num_bytes(*self.shape)

    def rows(self, index: Any) -> "QuantizedMatrix":
        """The rows that `index` selects, a slice or an array of row numbers."""
        arrays = {name: array[index] for name, array in self.arrays.items()}
        return QuantizedMatrix(self.format, self.num_inputs, **arrays)

    def centered_codes(self) -> npt.NDArray[np.int8]:
        """code - zero point, or the codebook's number, [N, K]."""
        if self.format.bits > 4:
            return np.asarray(self.codes, np.int8)
        num_outputs, num_inputs = self.shape
        codes = np.empty((num_outputs, 2 * self.codes.shape[1]), np.int8)
        codes[:, 0::2] = self.codes & 15
        codes[:, 1::2] = self.codes >> 4
        codes = codes[:, :num_inputs]
        if self.format.codebook:
            return np.array(self.format.codebook, np.int8)[codes]
        if self.zero_points is None:
            return np.asarray(codes - np.int8(self.format.zero_point), np.int8)
        return np.asarray(codes - self._per_input(self.zero_points), np.int8)

    def group_scales(self) -> npt.NDArray[np.float32]:
        """The scale of each group, exactly: [N, groups], or [N, 1]."""
        return self._per_group(self.scales, self.scale_factors)

    def group_minimums(self) -> npt.NDArray[np.float32] | None:
        """The minimum of each group, exactly: [N, groups]."""
        return (
            None if self.minimums is None else self._per_group(self.minimums, self.minimum_factors)
        )

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The weights [N, K] that the codes stand for, in f32: products with scales that are not f16
        may round, and so do sums with minimums."""
        weights = np.asarray(self.centered_codes() * self._per_input(self.group_scales()))
        minimums = self.group_minimums()
        return weights if minimums is None else weights + self._per_input(minimums)

    def _per_group(
        self, numbers: npt.NDArray[Any], factors: npt.NDArray[np.float16] | None
    ) -> npt.NDArray[np.float32]:
        per_group = numbers.astype(np.float32).reshape(len(numbers), -1)
        if self.format.scale is ScaleKind.EXPONENT:
            powers = np.ldexp(np.float32(1), per_group.astype(np.int32) - 127)
            return np.asarray(np.where(per_group > 0, powers, 0), np.float32)
        if factors is None:
            return per_group
        groups_per_block = BLOCK // (self.format.group_size or BLOCK)
        repeated = np.repeat(factors, groups_per_block, axis=1)[:, : per_group.shape[1]]
        return per_group * repeated.astype(np.float32)

    def _per_input(self, per_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[N, groups] -> [N, K], or [N, 1] if there is one group."""
        if self.format.group_size is None:
            return per_group
        return np.repeat(per_group, self.format.group_size, axis=1)[:, : self.num_inputs]


def empty_matrix(
    weight_format: IntegerFormat, num_outputs: int, num_inputs: int
) -> QuantizedMatrix:
    """A matrix with arrays for the caller to fill."""
    arrays = {
        name: np.empty(shape, dtype)
        for name, (dtype, shape) in weight_format.arrays(num_outputs, num_inputs).items()
    }
    return QuantizedMatrix(weight_format, num_inputs, **arrays)


def concatenate_rows(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """The rows of matrices in one format, one after the other."""
    first = matrices[0]
    if len(matrices) == 1:
        return first
    assert all(matrix.format == first.format for matrix in matrices)
    arrays = {
        name: np.concatenate([matrix.arrays[name] for matrix in matrices]) for name in first.arrays
    }
    return QuantizedMatrix(first.format, first.num_inputs, **arrays)


def pack_nibbles(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4-bit codes [N, K] -> [N, ceil(K / 2)], the even input in the low half of a byte."""
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return np.asarray(codes[:, 0::2] | (codes[:, 1::2] << 4), np.uint8)
