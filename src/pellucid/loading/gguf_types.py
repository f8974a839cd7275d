"""Types of tensors in GGUF files, those of other programs too, which no one here reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gguf.constants import GGMLQuantizationType

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


@dataclass(frozen=True)
class ForeignType:
    """A type that llama.cpp does not have. How many bytes its numbers take is unknown.

    Args:
        number: in the file.
    """

    number: int

    @property
    def name(self) -> str:
        """For people."""
        known = _IK_TYPES.get(self.number)
        return (
            f"{known} of ik_llama.cpp" if known else f"{self.number}, which llama.cpp does not have"
        )


TensorType: TypeAlias = GGMLQuantizationType | ForeignType


def tensor_type(number: int) -> TensorType:
    """The type of a number in a file."""
    try:
        return GGMLQuantizationType(number)
    except ValueError:
        return ForeignType(number)
