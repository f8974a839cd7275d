"""The integer weight formats, and the arrays of a matrix in each of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALL_GROUP, GROUP, LARGE_GROUP = 16, 32, 128  # inputs
BLOCK = 256  # inputs that share the factors of their scales, in formats that have such


@dataclass(frozen=True)
class IntegerFormat:
    """A code q of `bits` bits stands for scale * (q - zero point) + minimum.

    Scales, zero points and minimums belong to groups of neighbouring inputs of one output; where K is not a
    multiple of `group_size`, the last group of each row is shorter.

    Args:
        name: as in `EngineConfig.quantization` and in files.
        bits: 8, signed, -127 .. 127 with zero point 0; or 4, unsigned, 0 .. 15.
        group_size: inputs that share a scale; None: all of a row.
        has_zero_points: whether each group has its own zero point, 0 .. 15.
        has_minimums: whether each group has a minimum.
        has_factors: whether scales and minimums of groups are integers of 8 bits, each to be multiplied
            with an f16 that the groups of 256 inputs share, instead of being f16 themselves.
    """

    name: str
    bits: int
    group_size: int | None
    has_zero_points: bool = False
    has_minimums: bool = False
    has_factors: bool = False

    @property
    def zero_point(self) -> int:
        """Of all groups, where they do not have their own."""
        return 8 if self.bits == 4 and not self.has_minimums else 0

    def num_groups(self, num_inputs: int) -> int:
        """Groups of a row."""
        return 1 if self.group_size is None else -(-num_inputs // self.group_size)

    def arrays(
        self, num_outputs: int, num_inputs: int
    ) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of each array of a matrix [num_outputs, num_inputs], by its name."""
        groups = (num_outputs, self.num_groups(num_inputs))
        arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        if self.bits == 8:
            arrays["codes"] = np.dtype(np.int8), (num_outputs, num_inputs)
        else:  # the even input in the low half of a byte; a half too many is 0
            arrays["codes"] = np.dtype(np.uint8), (num_outputs, -(-num_inputs // 2))
        if self.group_size is None:
            arrays["scales"] = np.dtype(np.float32), (num_outputs,)
        else:
            scale = np.dtype(np.int8 if self.has_factors else np.float16)
            arrays["scales"] = scale, groups
            if self.has_minimums:
                arrays["minimums"] = scale, groups
        if self.has_zero_points:
            arrays["zero_points"] = np.dtype(np.uint8), groups
        if self.has_factors:
            blocks = np.dtype(np.float16), (num_outputs, -(-num_inputs // BLOCK))
            arrays["scale_factors"] = blocks
            if self.has_minimums:
                arrays["minimum_factors"] = blocks
        return arrays


INT8 = IntegerFormat("int8", 8, GROUP)
INT4 = IntegerFormat("int4", 4, GROUP)

FORMATS: Mapping[str, IntegerFormat] = {
    each.name: each
    for each in (
        INT8,  # the numbers of GGUF's Q8_0
        IntegerFormat("int8-channel", 8, None),
        INT4,  # the numbers of GGUF's Q4_0
        IntegerFormat("int4-g128", 4, LARGE_GROUP),
        IntegerFormat("int4-zp", 4, GROUP, has_zero_points=True),
        IntegerFormat("int4-g128-zp", 4, LARGE_GROUP, has_zero_points=True),
    )
}

# For GGUF's other blocks, whose scales are products or whose grids begin anywhere: their numbers as they
# are, codes perhaps in more bits. Nothing is quantized to these.
INT8_MIN = IntegerFormat("int8-min", 8, GROUP, has_minimums=True)
INT4_MIN = IntegerFormat("int4-min", 4, GROUP, has_minimums=True)
INT8_K = IntegerFormat("int8-k", 8, GROUP, has_minimums=True, has_factors=True)
INT4_K = IntegerFormat("int4-k", 4, GROUP, has_minimums=True, has_factors=True)
INT8_K16 = IntegerFormat("int8-k16", 8, SMALL_GROUP, has_factors=True)
INT4_K16 = IntegerFormat("int4-k16", 4, SMALL_GROUP, has_minimums=True, has_factors=True)
