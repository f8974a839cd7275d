"""Weights in NumPy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import JoinedHandle, Weights
from pellucid.backends.joined_matrix import UniformMatrix, in_arrays
from pellucid.backends.numpy.quantized import NumpyQuantizedMatrix, make_numpy_quantized
from pellucid.backends.ops import HostArray
from pellucid.backends.quantization.matrix import QuantizedMatrix


@dataclass(frozen=True)
class NumpyMatrix:
    """weight [N, M] and bias [N] in the backend's dtype."""

    weight: HostArray
    bias: HostArray | None


NumpyWeight: TypeAlias = NumpyMatrix | NumpyQuantizedMatrix | JoinedHandle
NumpyStack: TypeAlias = Sequence[NumpyWeight]


class NumpyWeights(Weights):
    """Makes the array of each weight when it is loaded.

    Args:
        dtype: what floats become.
        quantize_activations: whether rows become int8 where they meet integer weights; else the
            weights become floats.
    """

    def __init__(self, dtype: type[np.floating[Any]], quantize_activations: bool) -> None:
        self.itemsize = np.dtype(dtype).itemsize
        self._dtype = dtype
        self._quantize_activations = quantize_activations

    def uniform(
        self, weight: UniformMatrix, bias: npt.NDArray[Any] | None, rounds_activations: bool
    ) -> NumpyWeight:
        own_bias = None if bias is None else self.vector(bias)
        weight = in_arrays(weight)
        if isinstance(weight, QuantizedMatrix):
            if self._quantize_activations and rounds_activations:
                return make_numpy_quantized(weight, own_bias)
            weight = weight.dequantize()
        return NumpyMatrix(self.vector(weight), own_bias)

    def vector(self, weight: npt.NDArray[Any]) -> HostArray:
        return np.ascontiguousarray(weight, dtype=self._dtype)
