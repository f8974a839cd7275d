"""A weight matrix as integer codes with scales."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.quantization.formats import IntegerFormat

SYMMETRIC_ZERO_POINT = 8  # of 4-bit codes without zero points


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix [N, K] in one of the integer formats, in the arrays that `IntegerFormat.arrays` lists.

    Args:
        format: what the codes stand for.
        num_inputs: K.
        codes: int8 [N, K], or two codes in a uint8 [N, ceil(K / 2)].
        scales: f16 [N, groups], or f32 [N] for one scale per output.
        zero_points: uint8 [N, groups], where the format has them.
    """

    format: IntegerFormat
    num_inputs: int
    codes: npt.NDArray[np.integer[Any]]
    scales: npt.NDArray[np.floating[Any]]
    zero_points: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        arrays = {"codes": self.codes, "scales": self.scales, "zero_points": self.zero_points}
        expected = self.format.arrays(len(self.codes), self.num_inputs)
        for name, array in arrays.items():
            actual = None if array is None else (array.dtype, array.shape)
            assert actual == expected.get(name), f"{self.format.name} {name}: {actual}"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.codes), self.num_inputs

    @property
    def num_bytes(self) -> int:
        zero_points = 0 if self.zero_points is None else self.zero_points.nbytes
        return self.codes.nbytes + self.scales.nbytes + zero_points

    def rows(self, index: Any) -> "QuantizedMatrix":
        """The rows that `index` selects, a slice or an array of row numbers."""
        zero_points = None if self.zero_points is None else self.zero_points[index]
        return QuantizedMatrix(
            self.format, self.num_inputs, self.codes[index], self.scales[index], zero_points
        )

    def centered_codes(self) -> npt.NDArray[np.int8]:
        """code - zero point, [N, K]."""
        if self.format.bits == 8:
            return np.asarray(self.codes, np.int8)
        num_outputs, num_inputs = self.shape
        codes = np.empty((num_outputs, 2 * self.codes.shape[1]), np.int8)
        codes[:, 0::2] = self.codes & 15
        codes[:, 1::2] = self.codes >> 4
        codes = codes[:, :num_inputs]
        if self.zero_points is None:
            return np.asarray(codes - np.int8(SYMMETRIC_ZERO_POINT), np.int8)
        return np.asarray(codes - self._per_input(self.zero_points), np.int8)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The weights [N, K] that the codes stand for: exact, but for f32 scales, whose products round."""
        scales = self.scales.astype(np.float32).reshape(len(self.scales), -1)
        return np.asarray(self.centered_codes() * self._per_input(scales))

    def _per_input(self, per_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[N, groups] -> [N, K], or [N, 1] if there is one group."""
        if self.format.group_size is None:
            return per_group
        return np.repeat(per_group, self.format.group_size, axis=1)[:, : self.num_inputs]


def concatenate_rows(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """The rows of matrices in one format, behind each other."""
    first = matrices[0]
    assert all(matrix.format == first.format for matrix in matrices)
    zero_points = [m.zero_points for m in matrices if m.zero_points is not None]
    return QuantizedMatrix(
        first.format,
        first.num_inputs,
        np.concatenate([matrix.codes for matrix in matrices]),
        np.concatenate([matrix.scales for matrix in matrices]),
        np.concatenate(zero_points) if zero_points else None,
    )


def pack_nibbles(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4-bit codes [N, K] -> [N, ceil(K / 2)], the even input in the low half of a byte."""
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return np.asarray(codes[:, 0::2] | (codes[:, 1::2] << 4), np.uint8)
