"""The integer weight formats, and the arrays of a matrix in each of them."""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

SMALL_GROUP, GROUP, MEDIUM_GROUP, LARGE_GROUP = 16, 32, 64, 128  # inputs
LARGEST_EXPONENT = 200  # of scales that are powers of two: 2^73, far from the end of f32
BLOCK = 256  # inputs that share the factors of their scales, in formats that have such


class ScaleKind(Enum):
    """How scales and minimums are stored."""

    F32 = "one f32 per output"
    F16 = "one f16 per group"
    EXPONENT = "one byte e per group: 2^(e - 127), and 0 for e = 0"
    PRODUCT = "one int8 per group, times an f16 that the groups of 256 inputs share"


# The numbers that codes of 4 bits stand for: twice those of MXFP4 (OCP Microscaling Formats 1.0, e2m1),
# those of GGUF's IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl), and 127 times those of NF4, rounded
# (Dettmers et al., QLoRA, appendix E).
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
NORMAL_FLOAT = (-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127)


class IntegerFormat(Struct, frozen=True):
    """A code q of `bits` bits stands for scale * (q - zero point) + minimum, or scale * codebook[q].

    Scales, zero points and minimums belong to groups of neighbouring inputs of one output; where K is not a
    multiple of `group_size`, the last group of each row is shorter.

    Args:
        name: as in `EngineConfig.quantization` and in files.
        bits: 8, signed, -128 .. 127; 6, signed, -32 .. 31; 5, unsigned, 0 .. 31; or 4, unsigned, 0 .. 15.
        group_size: inputs that share a scale; None: all of a row.
        scale: how scales and minimums are stored.
        has_zero_points: whether each group has its own zero point, 0 .. 15.
        has_minimums: whether each group has a minimum.
        codebook: the numbers, -127 .. 127, that the 16 codes of 4 bits stand for; empty: the codes.
    """

    name: str
    bits: int
    group_size: int | None
    scale: ScaleKind = ScaleKind.F16
    has_zero_points: bool = False
    has_minimums: bool = False
    codebook: tuple[int, ...] = ()

    @property
    def has_factors(self) -> bool:
        """Whether scales and minimums are integers of 8 bits, to be multiplied with factors."""
        return self.scale is ScaleKind.PRODUCT

    @property
    def zero_point(self) -> int:
        """Of all groups, where they do not have their own."""
        return 8 if self.bits == 4 and not self.has_minimums else 0

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Of a matrix in the kernels' layout, without padding: codes of 5 and 6 bits take as many."""
        arrays = dict(self.arrays(num_outputs, num_inputs))
        if self.bits > 4:
            del arrays["codes"]
        num_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays.values())
        return num_bytes + (num_outputs * -(-num_inputs * self.bits // 8) if self.bits > 4 else 0)

    def num_groups(self, num_inputs: int) -> int:
        """Groups of a row."""
        return 1 if self.group_size is None else -(-num_inputs // self.group_size)

    def arrays(
        self, num_outputs: int, num_inputs: int
    ) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of each array of a matrix [num_outputs, num_inputs], by its name."""
        groups = (num_outputs, self.num_groups(num_inputs))
        arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        if self.bits > 4:
            arrays["codes"] = np.dtype(np.int8), (num_outputs, num_inputs)
        else:  # the even input in the low half of a byte; a half too many is 0
            arrays["codes"] = np.dtype(np.uint8), (num_outputs, -(-num_inputs // 2))
        scale = np.dtype(_SCALE_DTYPES[self.scale])
        shape = (num_outputs,) if self.group_size is None else groups
        arrays["scales"] = scale, shape
        if self.has_minimums:
            arrays["minimums"] = scale, shape
        if self.has_zero_points:
            arrays["zero_points"] = np.dtype(np.uint8), groups
        if self.has_factors:
            blocks = np.dtype(np.float16), (num_outputs, -(-num_inputs // BLOCK))
            arrays["scale_factors"] = blocks
            if self.has_minimums:
                arrays["minimum_factors"] = blocks
        return arrays


class FloatFormat(Struct, frozen=True):
    """Floats of `item_bytes` bytes each.

    Args:
        name: as native kernels call it.
    """

    name: str
    item_bytes: int

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Of a matrix."""
        return num_outputs * num_inputs * self.item_bytes


MatrixFormat: TypeAlias = FloatFormat | IntegerFormat

F32, F16, BF16 = FloatFormat("f32", 4), FloatFormat("f16", 2), FloatFormat("bf16", 2)

_SCALE_DTYPES: Mapping[ScaleKind, Any] = {
    ScaleKind.F32: np.float32,
    ScaleKind.F16: np.float16,
    ScaleKind.EXPONENT: np.uint8,
    ScaleKind.PRODUCT: np.int8,
}

INT8 = IntegerFormat("int8", 8, GROUP)  # the numbers of GGUF's Q8_0
INT8_CHANNEL = IntegerFormat("int8-channel", 8, None, ScaleKind.F32)
INT4 = IntegerFormat("int4", 4, GROUP)  # the numbers of GGUF's Q4_0
INT4_G128 = IntegerFormat("int4-g128", 4, LARGE_GROUP)
INT4_ZP = IntegerFormat("int4-zp", 4, GROUP, has_zero_points=True)
INT4_G128_ZP = IntegerFormat("int4-g128-zp", 4, LARGE_GROUP, has_zero_points=True)

# The formats to which weights are quantized.
FORMATS: Mapping[str, IntegerFormat] = {
    each.name: each for each in (INT8, INT8_CHANNEL, INT4, INT4_G128, INT4_ZP, INT4_G128_ZP)
}

# Formats of weights that were quantized elsewhere: their numbers are unchanged, their codes may take more
# bits. Nothing is quantized to these formats. First GGUF's blocks, whose scales are products or which have
# minimums; then codebooks; then the groups of AWQ and GPTQ.
INT8_MIN = IntegerFormat("int8-min", 8, GROUP, has_minimums=True)
INT4_MIN = IntegerFormat("int4-min", 4, GROUP, has_minimums=True)
INT5_K = IntegerFormat("int5-k", 5, GROUP, ScaleKind.PRODUCT, has_minimums=True)
INT4_K = IntegerFormat("int4-k", 4, GROUP, ScaleKind.PRODUCT, has_minimums=True)
INT6_K16 = IntegerFormat("int6-k16", 6, SMALL_GROUP, ScaleKind.PRODUCT)
INT4_S16 = IntegerFormat("int4-s16", 4, SMALL_GROUP, ScaleKind.PRODUCT)
INT4_K16 = IntegerFormat("int4-k16", 4, SMALL_GROUP, ScaleKind.PRODUCT, has_minimums=True)
MXFP4 = IntegerFormat("mxfp4", 4, GROUP, ScaleKind.EXPONENT, codebook=E2M1)
IQ4_NL = IntegerFormat("iq4-nl", 4, GROUP, codebook=IQ4)
IQ4_XS = IntegerFormat("iq4-xs", 4, GROUP, ScaleKind.PRODUCT, codebook=IQ4)
NF4 = IntegerFormat("nf4", 4, MEDIUM_GROUP, codebook=NORMAL_FLOAT)
INT4_G64 = IntegerFormat("int4-g64", 4, MEDIUM_GROUP)
INT4_G64_ZP = IntegerFormat("int4-g64-zp", 4, MEDIUM_GROUP, has_zero_points=True)

STORED_FORMATS: Mapping[str, IntegerFormat] = {
    **FORMATS,
    **{
        each.name: each
        for each in (
            *(INT8_MIN, INT4_MIN, INT5_K, INT4_K, INT6_K16, INT4_K16, INT4_S16),
            *(MXFP4, IQ4_NL, IQ4_XS, NF4, INT4_G64, INT4_G64_ZP),
        )
    },
}
