"""The definition of the integer formats of the KV cache.

A group of numbers of one token and kv-head shares a scale, as `facts.kv_formats` says. A scale is kept in
bf16, rounded away from zero; codes are made with the scale that is kept:

    8 bits   scale = amax / 127              code = round(x / scale)                       -127 .. 127
    4 bits   scale = extreme / -(7 .. 9)     code = min(max(round(x / scale), -8), 7)        -8 .. 7

extreme is the first number of greatest magnitude, so that all 16 codes are used (as in GGUF's Q4_0). With 4
bits nine scales are tried; the one whose codes have the smallest squared error is kept, the first of equals.
Rounding is to nearest even, in f32. A group of less than 2^-100 is zero. One that is not finite has an
infinite scale and codes 0: it is seen, as NaN, in everything that reads it.

Keys of 8 bits and values of 4 are those of the head after a Hadamard rotation: one large number then spreads over
its group (QuaRot, arXiv 2404.00456). Keys of 4 bits: `numpy/dimension_codes.py`.
"""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.ops import HostArray, IntArray
from pellucid.facts.kv_formats import NumberFormat

# An index of the first axis, or of the first two: which block, and which slot of it.
Slots: TypeAlias = IntArray | tuple[IntArray, IntArray]
Floats: TypeAlias = npt.NDArray[np.float32]

SMALLEST = np.float32(2.0**-100)
# With 4 bits: the codes, times -1, that the extreme number has before it is rounded, in the order of trial.
EXTREME_CODES = (8.0, 7.75, 8.25, 7.5, 8.5, 7.25, 8.75, 7.0, 9.0)
# The rotation lacks its factor 1 / sqrt(32): these are the factors of the way in and of the way back.
ROTATE_IN, ROTATE_BACK = np.float32(1 / 8), np.float32(1 / 4)


class CodeRows(Struct, frozen=True):
    """Keys or values of one layer as codes.

    Args:
        format: of 8 or 4 bits.
        head_dim: D.
        codes: int8 [*slots, K, numbers], or two codes + 8 to a byte, [*slots, K, numbers / 2], the even
            dimension in the low half. `numbers` is D, or that of whole groups if they are rotated.
        scales: bf16 [*slots, K, groups].
    """

    format: NumberFormat
    head_dim: int
    codes: npt.NDArray[Any]
    scales: npt.NDArray[Any]

    @classmethod
    def zeros(
        cls, number_format: NumberFormat, num_slots: int, num_kv_heads: int, head_dim: int
    ) -> "CodeRows":
        width = number_format.num_numbers(head_dim) * number_format.bits // 8
        code_dtype = np.int8 if number_format.bits == 8 else np.uint8
        shape = num_slots, num_kv_heads
        return cls(
            number_format,
            head_dim,
            np.zeros((*shape, width), code_dtype),
            np.zeros((*shape, number_format.num_groups(head_dim)), ml_dtypes.bfloat16),
        )

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.codes, self.scales)

    def over(self, *arrays: npt.NDArray[Any]) -> "CodeRows":
        return CodeRows(self.format, self.head_dim, *arrays)

    def write(self, slots: Slots, x: HostArray) -> None:
        codes, scales = quantize_rows(x, self.format)
        if self.format.bits == 8:
            self.codes[slots] = codes
        else:
            self.codes[slots] = pack_nibbles((codes + 8).astype(np.uint8))
        self.scales[slots] = scales

    def read(self, slots: Slots) -> Floats:
        codes = self.codes[slots]
        if self.format.bits == 4:
            codes = unpack_nibbles(codes).astype(np.int8) - np.int8(8)
        return restore_rows(codes, self.scales[slots], self.format, self.head_dim)


def quantize_rows(
    x: HostArray, number_format: NumberFormat
) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """Codes [T, K, numbers] and bf16 scales [T, K, groups] of x [T, K, D].

    Each group becomes codes on its own.
    """
    *rows, head_dim = x.shape
    padded = np.zeros((*rows, number_format.num_numbers(head_dim)), np.float32)
    padded[..., :head_dim] = x
    if number_format.is_rotated:
        padded = rotate(padded, ROTATE_IN)
    grouped = padded.reshape(*rows, number_format.num_groups(head_dim), -1)

    magnitude = np.abs(grouped)
    first = magnitude.argmax(axis=-1)[..., None]
    extreme = np.take_along_axis(grouped, first, axis=-1)
    is_finite = np.isfinite(grouped).all(axis=-1, keepdims=True)
    is_zero = np.abs(extreme) < SMALLEST
    extreme = np.where(is_finite & ~is_zero, extreme, np.float32(1))
    finite = np.where(is_finite, grouped, 0)
    if number_format.bits == 8:
        scale = away_from_zero(np.abs(extreme) / np.float32(127))
    else:
        scale = _best_scale(finite, extreme)
    codes = _rounded(finite, scale, number_format.bits) * ~is_zero
    scales = np.where(is_finite, np.where(is_zero, 0, scale), np.inf)
    return (
        codes.reshape(padded.shape).astype(np.int8),
        scales[..., 0].astype(ml_dtypes.bfloat16),
    )


def restore_rows(
    codes: npt.NDArray[np.int8],
    scales: npt.NDArray[Any],
    number_format: NumberFormat,
    head_dim: int,
) -> Floats:
    """The numbers [T, K, D] that codes and bf16 scales, as `quantize_rows` gives them, stand for."""
    width = codes.shape[-1] // number_format.num_groups(head_dim)
    by_dim = np.repeat(scales.astype(np.float32), width, axis=-1)
    with np.errstate(invalid="ignore"):  # 0 * infinity: what was not finite
        numbers = codes.astype(np.float32) * by_dim
    if number_format.is_rotated:
        numbers = rotate(numbers, ROTATE_BACK)
    return np.asarray(numbers[..., :head_dim])


def rotate(x: Floats, factor: np.float32) -> Floats:
    """Each group of 32 of x [..., numbers], times a Hadamard matrix of ones and minus ones, and times `factor`.

    Five steps: partners 16, 8, 4, 2 and 1 apart become their sum and their difference.
    """
    with np.errstate(invalid="ignore"):  # infinity - infinity: what was not finite
        y = x * factor
        for distance in (16, 8, 4, 2, 1):
            pairs = y.reshape(*x.shape[:-1], -1, 2, distance)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            y = np.stack([a + b, a - b], axis=-2)
    return np.asarray(y.reshape(x.shape))


def _rounded(x: Floats, scale: Floats, bits: int) -> Floats:
    codes = np.rint(x * (np.float32(1) / scale))
    return np.asarray(codes if bits == 8 else np.clip(codes, -8, 7))


def _best_scale(x: Floats, extreme: Floats) -> Floats:
    """Of groups x [..., 32]: [..., 1]."""
    best, error = away_from_zero(extreme / np.float32(-EXTREME_CODES[0])), np.float32(np.inf)
    for code in EXTREME_CODES:
        scale = away_from_zero(extreme / np.float32(-code))
        with np.errstate(over="ignore"):
            off = np.square(_rounded(x, scale, 4) * scale - x)
            for half in (16, 8, 4, 2, 1):  # in the order in which lanes of vectors are added
                off = off[..., :half] + off[..., half:]
        best = np.where(off < error, scale, best)
        error = np.minimum(off, error)
    return best


def away_from_zero(x: Floats) -> Floats:
    """Rounded to what a bf16 can hold, f32 still."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.asarray((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def pack_nibbles(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[..., numbers] codes 0 .. 15 -> [..., numbers / 2]."""
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4)


def unpack_nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    return np.asarray(halves.reshape(*packed.shape[:-1], -1))
