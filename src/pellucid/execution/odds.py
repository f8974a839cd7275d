"""The odds (unnormalised probabilities) of tokens, for truncation and for the draw.

Which tokens are kept and which one wins must be the same bit for bit in NumPy and in native kernels of
every instruction set, in whatever order they are summed. So weights are float32 from sums and products in a
fixed order, none of them fused, and what is added up are whole numbers. Log-probabilities are reported
from float64 (`candidates.py`) and decide nothing.
"""

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.draw_arithmetic import MASS_UNIT, MIN_EXPONENT, POLYNOMIAL, ROUND
from pellucid.backends.drawing import sharpness

FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]

_ROUND = np.float32(ROUND)
_POLYNOMIAL = tuple(map(np.float32, POLYNOMIAL))


class Odds(Struct, frozen=True, eq=False):
    """N tokens' weights relative to the likeliest.

    Attributes:
        logits: [N] float32, before the temperature: the order of tokens.
        exponents: [N] float32, log2 of the weights, MIN_EXPONENT .. 0.
    """

    logits: Float32Array
    exponents: Float32Array

    @staticmethod
    def of(logits: FloatArray, temperature: float) -> "Odds":
        """From logits [N], N >= 1, finite, at a temperature > 0."""
        rounded = logits.astype(np.float32)
        # Differences and products can only overflow towards -inf, which is a weight of 0.
        with np.errstate(over="ignore"):
            exponents = (rounded - rounded.max()) * np.float32(sharpness(temperature))
        return Odds(rounded, np.maximum(exponents, np.float32(MIN_EXPONENT)))

    def keep(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> "Odds":
        """Those of a mask [N], or at ascending indices."""
        return Odds(self.logits[chosen], self.exponents[chosen])

    @property
    def weights(self) -> Float32Array:
        """[N] float32, 0 .. 1: 2^exponent within 2 units in the last place; 0 for MIN_EXPONENT."""
        whole = self.exponents + _ROUND
        whole -= _ROUND
        fraction = self.exponents - whole
        weights: Float32Array = np.full_like(fraction, _POLYNOMIAL[0])
        for coefficient in _POLYNOMIAL[1:]:
            weights *= fraction
            weights += coefficient
        # 2^whole as the bits of a float32: no exponent is as low as those of subnormal numbers.
        bits = whole.astype(np.int32)
        bits += 127
        bits <<= 23
        weights *= bits.view(np.float32)
        weights[self.exponents <= MIN_EXPONENT] = 0
        return weights

    @property
    def masses(self) -> FloatArray:
        """[N] weights as whole numbers of `MASS_UNIT`, at most 2^30."""
        units = self.weights * np.float32(1 / MASS_UNIT) + np.float32(0.5)
        masses: FloatArray = np.trunc(units).astype(np.float64)
        return masses


def mass_to_reach(share: float, masses: FloatArray) -> float:
    """The least whole number that is `share` of all `masses`."""
    return float(math.ceil(share * masses.sum()))
