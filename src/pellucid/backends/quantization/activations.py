"""How the rows that meet integer weights become integers themselves, at run time."""

from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST_CODE = 127
SMALLEST_AMAX = np.float32(2.0**-100)  # below, 127 / amax would overflow


def quantize_activations(
    x: npt.NDArray[Any], group_size: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Dynamic symmetric int8, in IEEE single precision, one scale per group of neighbouring inputs.

        scale = amax / 127,  code = round to nearest even(x * (127 / amax)),  amax = max |x|

    A group whose amax is below 2^-100 counts as zero. One with an infinity or a NaN gets the scale
    NaN, so that it is seen in every output.

    Args:
        x: [T, K].
        group_size: inputs that share a scale. Zeros stand for what the last group lacks.

    Returns:
        codes [T, groups, group_size], scales [T, groups].
    """
    num_rows, num_inputs = x.shape
    num_groups = -(-num_inputs // group_size)
    padded = np.zeros((num_rows, num_groups * group_size), np.float32)
    padded[:, :num_inputs] = x
    groups = padded.reshape(num_rows, num_groups, group_size)

    amax = np.abs(groups).max(axis=-1)
    finite = np.isfinite(amax)
    used = finite & (amax >= SMALLEST_AMAX)
    safe = np.where(used, amax, np.float32(1))
    inverse = np.where(used, np.float32(LARGEST_CODE) / safe, np.float32(0))
    groups[~finite] = 0
    codes = np.rint(groups * inverse[:, :, None]).astype(np.int8)
    scales = np.where(used, safe / np.float32(LARGEST_CODE), np.float32(0))
    return codes, np.where(finite, scales, np.float32(np.nan))
