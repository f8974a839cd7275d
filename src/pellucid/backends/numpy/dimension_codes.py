"""The definition of keys whose dimensions have scales over positions (KIVI, arXiv 2402.02750).

A group is 32 positions. Each dimension of a kv-head has a scale and a minimum for a group, both in bf16, made of
the group's keys in bf16:

    scale = (greatest - least) / 15, rounded up     code = round((key - least) / scale)     0 .. 15

Rounding is to nearest even, in f32. A dimension whose keys differ by less than 2^-100 has the scale 0. One that is
not finite has the minimum NaN, and the scale and codes 0: every query that reads its codes sees it.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy.kv_codes import (
    SMALLEST,
    Floats,
    Slots,
    away_from_zero,
    pack_nibbles,
    unpack_nibbles,
)
from pellucid.backends.ops import HostArray, IntArray
from pellucid.facts.kv_formats import GROUP_POSITIONS, NumberFormat

MOST_CODE = 15


@dataclass(frozen=True)
class DimensionCodes:
    """Keys of one layer, in codes of 4 bits by dimension.

    Args:
        head_dim: D.
        codes: two to a byte [*slots, K, numbers / 2], the even dimension in the low half; `numbers` are D and the
            padding to whole groups of dimensions.
        factors: bf16, scales and minimums [*groups, 2, K, numbers]; the groups of the last axis of slots.
    """

    head_dim: int
    codes: npt.NDArray[np.uint8]
    factors: npt.NDArray[Any]

    @classmethod
    def zeros(
        cls, number_format: NumberFormat, num_slots: int, num_kv_heads: int, head_dim: int
    ) -> "DimensionCodes":
        """Raises:
        ValueError: the slots are not whole groups.
        """
        check_whole_groups(num_slots)
        numbers = number_format.num_numbers(head_dim)
        groups = num_slots // GROUP_POSITIONS
        return cls(
            head_dim,
            np.zeros((num_slots, num_kv_heads, numbers // 2), np.uint8),
            np.zeros((groups, 2, num_kv_heads, numbers), ml_dtypes.bfloat16),
        )

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.codes, self.factors)

    def over(self, *arrays: npt.NDArray[Any]) -> "DimensionCodes":
        return DimensionCodes(self.head_dim, *arrays)

    def write(self, slots: Slots, x: HostArray) -> None:
        """As `StoredRows.write`; slots are those of whole groups, in order."""
        rows = x.reshape(-1, GROUP_POSITIONS, *x.shape[1:])
        codes, scales, minimums = quantize_groups(rows, 2 * self.codes.shape[-1])
        self.codes[slots] = pack_nibbles(codes).reshape(len(x), *self.codes.shape[-2:])
        firsts = _groups(_every(slots, GROUP_POSITIONS))
        self.factors[firsts] = np.stack([scales, minimums], axis=1)

    def read(self, slots: Slots) -> Floats:
        factors = self.factors[_groups(slots)]
        return restore_rows(
            unpack_nibbles(self.codes[slots]), factors[:, 0], factors[:, 1], self.head_dim
        )


def check_whole_groups(block_size: int) -> None:
    """Raises:
    ValueError: a block would have a part of a group.
    """
    if block_size % GROUP_POSITIONS:
        raise ValueError(
            f"block_size={block_size}: must be a multiple of {GROUP_POSITIONS}, whose keys become codes together"
        )


def quantize_groups(
    x: HostArray, num_numbers: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any], npt.NDArray[Any]]:
    """Codes [G, 32, K, numbers], bf16 scales and minimums [G, K, numbers] of x [G, 32, K, D]; zeros behind D."""
    keys = np.zeros((*x.shape[:-1], num_numbers), np.float32)
    keys[..., : x.shape[-1]] = x.astype(ml_dtypes.bfloat16)
    least = keys.min(axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        spread = keys.max(axis=1) - least
    is_finite = np.isfinite(spread)
    has_codes = is_finite & (spread >= SMALLEST)
    scales = away_from_zero(np.where(has_codes, spread, 1) / np.float32(MOST_CODE))
    finite = np.where(has_codes[:, None], keys, 0)
    steps = np.rint(
        (finite - np.where(has_codes, least, 0)[:, None]) * (np.float32(1) / scales)[:, None]
    )
    return (
        steps.astype(np.uint8),
        np.where(has_codes, scales, 0).astype(ml_dtypes.bfloat16),
        np.where(is_finite, least, np.nan).astype(ml_dtypes.bfloat16),
    )


def restore_rows(
    codes: npt.NDArray[Any], scales: npt.NDArray[Any], minimums: npt.NDArray[Any], head_dim: int
) -> Floats:
    """The numbers [T, K, D] of codes, scales and minimums [T, K, numbers]."""
    with np.errstate(invalid="ignore", over="ignore"):  # what a block held before may be anything
        numbers = codes.astype(np.float32) * scales.astype(np.float32)
        return np.asarray((numbers + minimums.astype(np.float32))[..., :head_dim])


def round_group(x: HostArray) -> Floats:
    """What is left of keys [positions, K, D] that become codes together."""
    codes, scales, minimums = quantize_groups(x[None], x.shape[-1])
    return restore_rows(codes[0], scales, minimums, x.shape[-1])


def _groups(slots: Slots) -> Slots:
    if isinstance(slots, tuple):
        blocks, offsets = slots
        return blocks, offsets // GROUP_POSITIONS
    return np.asarray(slots) // GROUP_POSITIONS


def _every(slots: Slots, count: int) -> Slots:
    if isinstance(slots, tuple):
        blocks, offsets = slots
        return _thinned(blocks, count), _thinned(offsets, count)
    return _thinned(slots, count)


def _thinned(indices: IntArray, count: int) -> IntArray:
    return np.asarray(indices)[::count]
