"""Random weights in place of a checkpoint's, to measure the speed of a known shape."""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Weights
from pellucid.backends.joined_matrix import rows_of
from pellucid.backends.ops import IntArray, Parameters, Weight
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix

_SIGN_AND_FRACTION = 0x807F  # of a bf16; the other 8 bits are the exponent
_EXPONENT_BIAS, _FRACTION_BITS = 127, 7
# Two codes of 4 bits, of which 0 becomes 8: their mean is then 8, the zero point. Weights of another mean
# than 0 would give the hidden states of all tokens one direction, and these tokens the same experts.
_CENTERED = np.array([(byte & 15 or 8) | (byte >> 4 or 8) << 4 for byte in range(256)], np.uint8)


_TABLE_ROWS = 64


@dataclass(frozen=True)
class _RepeatedRows:
    """A table [num_rows, M] whose row i is row i modulo their number of `rows`."""

    rows: npt.NDArray[Any]
    num_rows: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.rows.shape[1]

    def read(self, rows: IntArray) -> npt.NDArray[Any]:
        return np.asarray(self.rows[rows % len(self.rows)])


class RandomParameters(Parameters):
    """The `Parameters` of an untrained model. Each weight is a function of its name, and of
    a size that keeps activations in the range of a trained model's: no infinities, no denormals.

    Integer formats get random codes: quantizing random floats would take minutes and change nothing.

    Args:
        weights: makes the handles.
        weight_format: of all matrices; None is bf16.
    """

    def __init__(self, weights: Weights, weight_format: IntegerFormat | None = None) -> None:
        self._weights = weights
        self._format = weight_format

    def make(self, weight: Weight) -> Any:
        """Matrices are of standard deviation about num_columns ** -0.5, in bf16 where they keep their floats; in a
        table, a few rows are repeated for all."""
        rng = np.random.default_rng(zlib.crc32(weight.name.encode()))
        match weight.kind:
            case "matrix":
                num_rows = weight.shape[0]
                own = self._weights.own_rows(num_rows)
                matrix, bias = self._drawn(weight)
                handle = self._weights.matrix(
                    rows_of(matrix, own), None if bias is None else bias[own]
                )
                return self._weights.shared(handle, num_rows)
            case "router":
                floats = _random_bf16(rng, *weight.shape)
                return self._weights.matrix(
                    floats, _random_bias(rng, weight), rounds_activations=False
                )
            case "experts":
                matrices = (self._drawn(each) for each in weight.matrices)
                return self._weights.stack(self._weights.expert(*each) for each in matrices)
            case "table":
                num_rows, num_columns = weight.shape
                rows = _random_bf16(rng, _TABLE_ROWS, num_columns)
                return self._weights.table(_RepeatedRows(rows, num_rows))
            case "vector":
                number = vector_number(weight.name) * weight.factor
                return self._weights.vector(np.full(weight.shape, number, np.float32))
            case "convolution":  # uniform, of standard deviation about kernel_size ** -0.5
                limit = (3 / weight.shape[1]) ** 0.5
                kernels = rng.uniform(-limit, limit, math.prod(weight.shape))
                return self._weights.vector(kernels.astype(np.float32))

    def _drawn(
        self, weight: Weight
    ) -> tuple[npt.NDArray[Any] | QuantizedMatrix, npt.NDArray[np.float32] | None]:
        """A matrix and its bias; the name decides the numbers."""
        rng = np.random.default_rng(zlib.crc32(weight.name.encode()))
        matrix: npt.NDArray[Any] | QuantizedMatrix
        if self._format is None:
            matrix = _random_bf16(rng, *weight.shape)
        else:
            matrix = _random_codes(rng, self._format, *weight.shape)
        return matrix, _random_bias(rng, weight)


def vector_number(name: str) -> float:
    """All numbers of a vector: 1 for a norm's weight, 0 for a bias; states of a delta net decay."""
    if name.endswith(".delta_decay.weight"):
        return -1.0
    return 1.0 if name.endswith(".weight") else 0.0


def _random_bias(rng: np.random.Generator, weight: Weight) -> npt.NDArray[np.float32] | None:
    if not weight.has_bias:
        return None
    return rng.uniform(-0.1, 0.1, weight.shape[0]).astype(np.float32)


def _random_bf16(
    rng: np.random.Generator, num_rows: int, num_columns: int
) -> npt.NDArray[ml_dtypes.bfloat16]:
    """Random signs and fractions, and four exponents: made from bits, for a gigabyte in a second."""
    bits = _random_bytes(rng, num_rows, 2 * num_columns).view(np.uint16)
    largest = _EXPONENT_BIAS - round(np.log2(num_columns) / 2)
    exponents = largest - ((bits >> _FRACTION_BITS) & 3)
    bits &= _SIGN_AND_FRACTION
    bits |= exponents << _FRACTION_BITS
    return bits.view(ml_dtypes.bfloat16)


def _random_codes(
    rng: np.random.Generator, weight_format: IntegerFormat, num_rows: int, num_columns: int
) -> QuantizedMatrix:
    arrays = {
        name: _random_bytes(rng, *shape).view(dtype) if name == "codes" else np.zeros(shape, dtype)
        for name, (dtype, shape) in weight_format.arrays(num_rows, num_columns).items()
    }
    codes = arrays["codes"]
    if weight_format.bits == 8:
        np.maximum(codes, -127, out=codes)
    elif weight_format.has_zero_points:
        arrays["zero_points"][:] = rng.integers(6, 10, arrays["zero_points"].shape)
    else:
        np.take(_CENTERED, codes, out=codes)
    if weight_format.bits == 4 and num_columns % 2:
        codes[:, -1] &= 15
    # Codes are spread evenly, so their standard deviation is their range over the root of 12.
    arrays["scales"][:] = (12 / num_columns) ** 0.5 / (1 << weight_format.bits)
    return QuantizedMatrix(weight_format, num_columns, **arrays)


def _random_bytes(rng: np.random.Generator, num_rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """[num_rows, row_bytes], contiguous."""
    num_bytes = num_rows * row_bytes
    words = rng.integers(0, 1 << 64, -(-num_bytes // 8), dtype=np.uint64)
    return words.view(np.uint8)[:num_bytes].reshape(num_rows, row_bytes)
