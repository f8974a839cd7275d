"""The definition of a linear with integer weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.ops import HostArray, IntArray
from pellucid.backends.quantization.activations import LARGEST_CODE, quantize_activations
from pellucid.backends.quantization.matrix import QuantizedMatrix

_LARGEST_NUMBER = 256  # a bound of all formats' code - zero point
_EXACT_IN_F32 = 1 << 24


@dataclass(frozen=True)
class NumpyQuantizedMatrix:
    """Integer weights [N, K], ready for products with int8 activations.

    Args:
        matrix: the weights as they were loaded.
        codes: code - zero point [groups, group_size, N], zero beyond K; in a float dtype that holds every
            sum of products of a group exactly, in whatever order a BLAS adds them.
        bias: [N] in the backend's dtype.
    """

    matrix: QuantizedMatrix
    codes: npt.NDArray[Any]
    bias: HostArray | None

    def linear(self, x: HostArray) -> HostArray:
        """x [T, K] -> [T, N] in x's dtype: an exact integer product per group; then, in group order,

        y += product * (weight's scale * x's scale)
        y += (sum of x's codes * x's scale) * minimum, where the weights have minimums.
        """
        num_groups, group_size, num_outputs = self.codes.shape
        rows = quantize_activations(x, group_size)
        scales, minimums = self.matrix.group_scales(), self.matrix.group_minimums()
        y = np.zeros((len(x), num_outputs), x.dtype)
        for group in range(num_groups):
            x_scales = rows.scales[:, group, None]
            products = rows.codes[:, group].astype(self.codes.dtype) @ self.codes[group]
            y += products.astype(np.float32) * (scales[:, group] * x_scales)
            if minimums is not None:
                sums = rows.codes[:, group].sum(axis=-1, dtype=np.int32, keepdims=True)
                y += (sums.astype(np.float32) * x_scales) * minimums[:, group]
        return y if self.bias is None else y + self.bias

    def embed(self, token_ids: IntArray) -> HostArray:
        """Rows of the matrix, [T] -> [T, K] in f32."""
        return self.matrix.rows(token_ids).dequantize()


def make_numpy_quantized(matrix: QuantizedMatrix, bias: HostArray | None) -> NumpyQuantizedMatrix:
    """Lays the codes of `matrix` out for products."""
    num_outputs, num_inputs = matrix.shape
    group_size = matrix.format.group_size or num_inputs
    largest_sum = group_size * LARGEST_CODE * _LARGEST_NUMBER
    dtype = np.float32 if largest_sum < _EXACT_IN_F32 else np.float64
    num_groups = matrix.format.num_groups(num_inputs)
    codes = np.zeros((num_outputs, num_groups * group_size), dtype)
    codes[:, :num_inputs] = matrix.centered_codes()
    by_group = codes.reshape(num_outputs, num_groups, group_size).transpose(1, 2, 0)
    return NumpyQuantizedMatrix(matrix, np.ascontiguousarray(by_group), bias)
