"""Quantizes activations to int8, for products with integer weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST_CODE = 127
SMALLEST_AMAX = np.float32(2.0**-100)  # below, 127 / amax would overflow


@dataclass(frozen=True)
class QuantizedRows:
    """A code q of row t and group g stands for scales[t, g] * q.

    Args:
        codes: [T, groups, group_size], -127 .. 127.
        scales: [T, groups].
    """

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]


def quantize_activations(x: npt.NDArray[Any], group_size: int) -> QuantizedRows:
    """Dynamic symmetric int8, in IEEE single precision: a scale for each group of neighbouring inputs.

        scale = amax / 127,  code = round to nearest even(x * (127 / amax)),  amax = max |x|

    A group whose amax is below 2^-100 counts as zero. One with an infinity or a NaN gets the scale NaN, so
    that it is seen in every output.

    Args:
        x: [T, K].
        group_size: inputs that share a scale. The last group is filled up with zeros.
    """
    num_rows, num_inputs = x.shape
    num_groups = -(-num_inputs // group_size)
    padded = np.zeros((num_rows, num_groups * group_size), np.float32)
    padded[:, :num_inputs] = x
    groups = padded.reshape(num_rows, num_groups, group_size)

    amax = np.abs(groups).max(axis=-1)
    finite = np.isfinite(amax)
    used = finite & (amax >= SMALLEST_AMAX)
    groups[~used] = 0
    amax = np.where(used, amax, np.float32(1))
    scales = np.where(used, amax / np.float32(LARGEST_CODE), np.float32(0))
    inverses = np.float32(LARGEST_CODE) / amax
    return QuantizedRows(
        np.rint(groups * inverses[:, :, None]).astype(np.int8),
        np.where(finite, scales, np.float32(np.nan)),
    )
