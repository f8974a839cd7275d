"""The integer weight formats and the arrays that a matrix in each of them consists of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALL_GROUP, GROUP, LARGE_GROUP = 16, 32, 128  # inputs


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
        has_wide_scales: whether the scales of groups are f32 and not f16.
        has_minimums: whether each group has a minimum, in f32.
    """

    name: str
    bits: int
    group_size: int | None
    has_zero_points: bool = False
    has_wide_scales: bool = False
    has_minimums: bool = False

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
            arrays["scales"] = np.dtype(np.float32 if self.has_wide_scales else np.float16), groups
        if self.has_zero_points:
            arrays["zero_points"] = np.dtype(np.uint8), groups
        if self.has_minimums:
            arrays["minimums"] = np.dtype(np.float32), groups
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
# are, in more bits. Nothing is quantized to these.
INT8_G16 = IntegerFormat("int8-g16", 8, SMALL_GROUP, has_wide_scales=True)
INT8_MIN = IntegerFormat("int8-min", 8, GROUP, has_wide_scales=True, has_minimums=True)
INT4_MIN = IntegerFormat("int4-min", 4, GROUP, has_wide_scales=True, has_minimums=True)
