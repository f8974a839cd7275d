"""The definition of the integer formats of the KV cache.

A group of numbers of one token and kv-head shares a scale: with 8 bits the whole head, with 4 bits 32
dimensions. A scale is kept in bf16, rounded away from zero; codes are made with the scale that is kept:

    8 bits   scale = amax / 127           code = round(x / scale)            -127 .. 127
    4 bits   scale = extreme / -8         code = min(round(x / scale), 7)      -8 .. 7

extreme is the first number of greatest magnitude, so that all 16 codes are used (as in GGUF's Q4_0);
rounding is to nearest even, in f32. A group of less than 2^-100 is zero. One that is not finite has an
infinite scale and codes 0: it is seen, as NaN, in everything that reads it.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.ops import Array, IntArray

# An index of the first axis, or of the first two: which block, and which slot of it.
Slots: TypeAlias = IntArray | tuple[IntArray, IntArray]

INT4_GROUP_DIMS = 32
SMALLEST = np.float32(2.0**-100)
LARGEST_CODE = {8: 127, 4: 7}


@dataclass(frozen=True)
class CodeRows:
    """Keys or values of one layer as codes.

    Args:
        bits: 8 or 4.
        head_dim: D.
        codes: int8 [*slots, K, D], or two codes + 8 to a byte, [*slots, K, ceil(D / 2)], the even
            dimension in the low half.
        scales: bf16 [*slots, K, groups].
    """

    bits: int
    head_dim: int
    codes: npt.NDArray[Any]
    scales: npt.NDArray[Any]

    @classmethod
    def zeros(cls, bits: int, num_slots: int, num_kv_heads: int, head_dim: int) -> "CodeRows":
        groups, width = 1, head_dim
        if bits == 4:
            groups, width = -(-head_dim // INT4_GROUP_DIMS), -(-head_dim // 2)
        return cls(
            bits,
            head_dim,
            np.zeros((num_slots, num_kv_heads, width), np.int8 if bits == 8 else np.uint8),
            np.zeros((num_slots, num_kv_heads, groups), ml_dtypes.bfloat16),
        )

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.codes, self.scales)

    def over(self, *arrays: npt.NDArray[Any]) -> "CodeRows":
        return CodeRows(self.bits, self.head_dim, *arrays)

    def write(self, slots: Slots, x: Array) -> None:
        codes, scales = quantize_rows(x, self.bits)
        self.codes[slots] = codes if self.bits == 8 else _pack(codes)
        self.scales[slots] = scales

    def read(self, slots: Slots) -> npt.NDArray[np.float32]:
        codes = self.codes[slots]
        if self.bits == 4:
            codes = _unpack(codes)[..., : self.head_dim]
        return restore_rows(codes, self.scales[slots], self.bits)


def quantize_rows(x: Array, bits: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """x [T, K, D] as codes [T, K, D] and bf16 scales [T, K, groups]."""
    num_rows, num_kv_heads, head_dim = x.shape
    group_dims = head_dim if bits == 8 else INT4_GROUP_DIMS
    groups = -(-head_dim // group_dims)
    padded = np.zeros((num_rows, num_kv_heads, groups * group_dims), np.float32)
    padded[..., :head_dim] = x
    grouped = padded.reshape(num_rows, num_kv_heads, groups, group_dims)

    magnitude = np.abs(grouped)
    first = magnitude.argmax(axis=-1)[..., None]
    extreme = np.take_along_axis(grouped, first, axis=-1)
    is_finite = np.isfinite(grouped).all(axis=-1, keepdims=True)
    is_zero = np.abs(extreme) < SMALLEST
    extreme = np.where(is_finite & ~is_zero, extreme, np.float32(1))
    exact = np.abs(extreme) / np.float32(127) if bits == 8 else extreme / np.float32(-8)
    scale = _away_from_zero(exact)
    codes = np.rint(np.where(is_finite, grouped, 0) * (np.float32(1) / scale))
    codes = np.minimum(codes, LARGEST_CODE[bits]) * ~is_zero
    scales = np.where(is_finite, np.where(is_zero, 0, scale), np.inf)
    return (
        codes.reshape(padded.shape)[..., :head_dim].astype(np.int8),
        scales[..., 0].astype(ml_dtypes.bfloat16),
    )


def restore_rows(
    codes: npt.NDArray[np.int8], scales: npt.NDArray[Any], bits: int
) -> npt.NDArray[np.float32]:
    """The numbers [T, K, D] that codes and bf16 scales, as `quantize_rows` gives them, stand for."""
    head_dim = codes.shape[-1]
    group_dims = head_dim if bits == 8 else INT4_GROUP_DIMS
    by_dim = np.repeat(scales.astype(np.float32), group_dims, axis=-1)[..., :head_dim]
    with np.errstate(invalid="ignore"):  # 0 * infinity: what was not finite
        return np.asarray(codes.astype(np.float32) * by_dim)


def _away_from_zero(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rounded to what a bf16 can hold, f32 still."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.asarray((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def _pack(codes: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """[..., D] codes of 4 bits -> [..., ceil(D / 2)]."""
    halves = (codes + 8).astype(np.uint8)
    if halves.shape[-1] % 2:
        halves = np.concatenate([halves, np.zeros_like(halves[..., :1])], axis=-1)
    return np.asarray(halves[..., 0::2] | halves[..., 1::2] << 4)


def _unpack(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    return np.asarray(halves.reshape(*packed.shape[:-1], -1).astype(np.int8) - np.int8(8))
