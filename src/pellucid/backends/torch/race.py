"""Weights of tokens and their race: what a draw computes for a whole vocabulary.

The race is among few tokens: the upper bits of the noise tell of all others that they arrive later than one whose
arrival is known.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pellucid.backends.draw_arithmetic import MIN_EXPONENT, POLYNOMIAL, ROUND
from pellucid.backends.torch.noise import NoiseKeys, exponential_noise, upper_bits

_BIAS, _MANTISSA_BITS = 127, 23  # of the bits of an f32
_UNITS = 1 << 16  # of the upper bits of noise

FindWeights: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


class DrawKernels(NamedTuple):
    """What computes weights and races; the bits are the same.

    Attributes:
        weights: as `weights_of_rows`.
        race: as `race`.
    """

    weights: FindWeights
    race: Callable[[Tensor, NoiseKeys], Tensor]


def weights_of_rows(logits: Tensor, peaks: Tensor, sharpness: Tensor) -> Tensor:
    """As `Odds.weights`, f32 [N, V].

    Args:
        logits: f32 [N, V], without NaN.
        peaks: f32 [N], the largest ones, finite.
        sharpness: f32 [N, 1].
    """
    return _weights_of(exponents_of(logits - peaks[:, None], sharpness))


def exponents_of(distances: Tensor, sharpness: Tensor | float) -> Tensor:
    """log2 of the weights, MIN_EXPONENT .. 0.

    Args:
        distances: f32, of logits to the largest, <= 0.
    """
    return (distances * sharpness).clamp(min=MIN_EXPONENT)


def _weights_of(exponents: Tensor) -> Tensor:
    """As `Odds.weights`, f32."""
    whole = (exponents + ROUND) - ROUND
    fraction = exponents - whole
    weights = torch.full_like(fraction, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        weights = weights * fraction
        weights = weights + coefficient
    powers = ((whole.to(torch.int32) + _BIAS) << _MANTISSA_BITS).view(torch.float32)
    return (weights * powers).masked_fill(exponents <= MIN_EXPONENT, 0)


def race(weights: Tensor, keys: NoiseKeys) -> Tensor:
    """The first to arrive at noise / weight, [N]; of equals the lower token. V where no weight is above 0.

    Noise is at least its upper bits / 2^16: so tokens whose upper bits are greater than a time times their weights
    arrive after this time.
    """
    num_draws, vocab_size = weights.shape
    upper = upper_bits(keys, vocab_size)
    units = upper.float()
    probable = ((units + 1) / weights).argmin(dim=1)  # a weight of 0 arrives never
    times = _arrivals(
        weights, upper, keys, torch.arange(num_draws, device=weights.device), probable
    )
    latest = (times * (_UNITS * (1 + 1 / _UNITS))).float()[:, None]
    draws, token_ids = ((units <= latest * weights) & (weights > 0)).nonzero(as_tuple=True)
    times = _arrivals(weights, upper, keys, draws, token_ids)
    first = times.new_full((num_draws,), torch.inf).scatter_reduce(0, draws, times, "amin")
    is_first = times == first[draws]
    lowest = torch.where(is_first, token_ids, vocab_size)
    none = torch.full_like(probable, vocab_size)
    return none.scatter_reduce(0, draws, lowest, "amin")


def _arrivals(
    weights: Tensor, upper: Tensor, keys: NoiseKeys, draws: Tensor, token_ids: Tensor
) -> Tensor:
    """Of some tokens of some draws, [S] f64."""
    noise = exponential_noise(keys.of(draws), token_ids, upper[draws, token_ids])
    return noise / weights[draws, token_ids].double()


PLAIN_DRAWS = DrawKernels(weights_of_rows, race)
