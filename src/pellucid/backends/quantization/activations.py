"""Quantizes activations to int8, for products with integer weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST_CODE = 127
SMALLEST_AMAX = np.float32(2.0**-80)  # below, halved scales and their inverses could leave f32
MAX_HALVINGS = 31
ROOTS = np.exp2(np.arange(4) / 4).astype(np.float32)  # the powers of the fourth root of two
_MANTISSA_BITS = 23


@dataclass(frozen=True)
class QuantizedRows:
    """A code q of row t and group g stands for scales[t] * shares[t, g] * q.

    Args:
        codes: [T, groups, group_size], -127 .. 127.
        shares: [T, groups], from 2^-31 to 1: powers of two, times one of `ROOTS`.
        scales: [T].
    """

    codes: npt.NDArray[np.int8]
    shares: npt.NDArray[np.float32]
    scales: npt.NDArray[np.float32]


def quantize_activations(x: npt.NDArray[Any], group_size: int) -> QuantizedRows:
    """Dynamic symmetric int8, in IEEE single precision: a scale per row, which each group of neighbouring
    inputs halves, and divides by the fourth root of two, as often as its own numbers allow.

        scale = row max / 127,  maxima of |x|
        halvings = the most, up to 31, with group max * 2^halvings <= row max
        root = the largest of ROOTS with group max * 2^halvings * root <= row max, 1 if halvings = 31
        code = round to nearest even(x * (127 / row max * 2^halvings * root))

    A row whose max is below 2^-80 counts as zero. One with an infinity or a NaN gets the scale NaN, so
    that it is seen in every output.

    Args:
        x: [T, K].
        group_size: inputs that share a scale. The last group is filled up with zeros.
    """
    num_rows, num_inputs = x.shape
    num_groups = -(-num_inputs // group_size)
    padded = np.zeros((num_rows, num_groups * group_size), np.float32)
    padded[:, :num_inputs] = x

    row_max = np.abs(padded).max(axis=-1)
    finite = np.isfinite(row_max)
    used = finite & (row_max >= SMALLEST_AMAX)
    padded[~used] = 0
    row_max = np.where(used, row_max, np.float32(1))
    scales = np.where(used, row_max / np.float32(LARGEST_CODE), np.float32(0))

    groups = padded.reshape(num_rows, num_groups, group_size)
    group_max = np.abs(groups).max(axis=-1)
    # Floats as integers: of their difference, what is above the mantissa.
    exponents = (row_max[:, None].view(np.int32) - group_max.view(np.int32)) >> _MANTISSA_BITS
    halvings = np.minimum(exponents, MAX_HALVINGS)
    raised = np.ldexp(group_max, halvings)[..., None] * ROOTS[1:]
    fits = (halvings < MAX_HALVINGS)[..., None] & (raised <= row_max[:, None, None])
    root = fits.sum(axis=-1)  # its place in ROOTS
    inverses = np.ldexp((np.float32(LARGEST_CODE) / row_max)[:, None], halvings) * ROOTS[root]
    return QuantizedRows(
        np.rint(groups * inverses[:, :, None]).astype(np.int8),
        np.ldexp(ROOTS[-root], -halvings - (root > 0)),
        np.where(finite, scales, np.float32(np.nan)),
    )
