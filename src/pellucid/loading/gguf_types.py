"""Types of values and tensors in GGUF files, those of other programs too, which no one here reads.

The numbers are those of ggml.h and gguf.h. The gguf library has them too; importing it takes longer than reading a
header. tests/unit/test_gguf_types.py compares.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct


class ValueType(IntEnum):
    """Of a value of the metadata."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class TensorKind(IntEnum):
    """How llama.cpp stores the numbers of a tensor."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


# Numbers of a block, and its bytes.
BLOCK_SIZES: Mapping[TensorKind, tuple[int, int]] = {
    TensorKind.F32: (1, 4),
    TensorKind.F16: (1, 2),
    TensorKind.Q4_0: (32, 18),
    TensorKind.Q4_1: (32, 20),
    TensorKind.Q5_0: (32, 22),
    TensorKind.Q5_1: (32, 24),
    TensorKind.Q8_0: (32, 34),
    TensorKind.Q8_1: (32, 40),
    TensorKind.Q2_K: (256, 84),
    TensorKind.Q3_K: (256, 110),
    TensorKind.Q4_K: (256, 144),
    TensorKind.Q5_K: (256, 176),
    TensorKind.Q6_K: (256, 210),
    TensorKind.Q8_K: (256, 292),
    TensorKind.IQ2_XXS: (256, 66),
    TensorKind.IQ2_XS: (256, 74),
    TensorKind.IQ3_XXS: (256, 98),
    TensorKind.IQ1_S: (256, 50),
    TensorKind.IQ4_NL: (32, 18),
    TensorKind.IQ3_S: (256, 110),
    TensorKind.IQ2_S: (256, 82),
    TensorKind.IQ4_XS: (256, 136),
    TensorKind.I8: (1, 1),
    TensorKind.I16: (1, 2),
    TensorKind.I32: (1, 4),
    TensorKind.I64: (1, 8),
    TensorKind.F64: (1, 8),
    TensorKind.IQ1_M: (256, 56),
    TensorKind.BF16: (1, 2),
    TensorKind.TQ1_0: (256, 54),
    TensorKind.TQ2_0: (256, 66),
    TensorKind.MXFP4: (32, 17),
    TensorKind.NVFP4: (64, 36),
    TensorKind.Q1_0: (128, 18),
}

# https://github.com/ikawrakow/ik_llama.cpp, ggml/include/ggml.h
_IK_TYPES: Mapping[int, str] = {
    36: "I2_S",
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
}


class ForeignType(Struct, frozen=True):
    """A type that llama.cpp does not have. How many bytes its numbers take is unknown.

    Args:
        number: in the file.
    """

    number: int

    @property
    def short_name(self) -> str:
        """A name, or the number where no name is known."""
        return _IK_TYPES.get(self.number, str(self.number))

    @property
    def name(self) -> str:
        """For people."""
        known = _IK_TYPES.get(self.number)
        return (
            f"{known} of ik_llama.cpp" if known else f"{self.number}, which llama.cpp does not have"
        )


TensorType: TypeAlias = TensorKind | ForeignType


def tensor_type(number: int) -> TensorType:
    """The type of a number in a file."""
    try:
        return TensorKind(number)
    except ValueError:
        return ForeignType(number)
