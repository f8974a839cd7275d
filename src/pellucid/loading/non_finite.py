"""Finds NaN and infinity in weights."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

# A float is NaN or infinite exactly if all bits of its exponent are set.
_EXPONENT_BITS: Mapping[np.dtype[Any], np.unsignedinteger[Any]] = {
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F80),
    np.dtype(np.float16): np.uint16(0x7C00),
    np.dtype(np.float32): np.uint32(0x7F80_0000),
    np.dtype(np.float64): np.uint64(0x7FF0_0000_0000_0000),
}
_CHUNK = 1 << 18  # elements: the temporary stays in a core's cache


def first_non_finite(tensor: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity of a contiguous tensor, None if there is none."""
    mask = _EXPONENT_BITS[tensor.dtype]
    bits = tensor.reshape(-1).view(mask.dtype)
    for start in range(0, bits.size, _CHUNK):
        exponents = bits[start : start + _CHUNK] & mask
        if exponents.max() == mask:
            position = start + int(np.argmax(exponents))
            return tuple(map(int, np.unravel_index(position, tensor.shape)))
    return None
