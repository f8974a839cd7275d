"""The inverse frequencies of rotary position embedding, for every scaling that checkpoints use.

Everything is computed in f64 and agrees with transformers' `modeling_rope_utils` within its f32
rounding; backends round the result to their own dtype.
"""

import math
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.facts.model_config import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    LongRopeScaling,
    ProportionalRopeScaling,
    RopeConfig,
    YarnRopeScaling,
)

Frequencies: TypeAlias = npt.NDArray[np.float64]  # [dim / 2], radians per position


def frequency_rows(
    rope: RopeConfig, lengths: npt.NDArray[np.integer[Any]], dtype: npt.DTypeLike
) -> tuple[npt.NDArray[Any], float]:
    """`rope_frequencies` of each token of a step.

    Args:
        rope: the checkpoint's facts.
        lengths: [T], `ForwardBatch.rope_lens`.
        dtype: of the radians.

    Returns:
        inv_freq [T, dim / 2], or [1, dim / 2] if it is the same for every length; attention factor.
    """
    if rope.trained_length is None:
        inv_freq, factor = _of_any_length(rope)
        return inv_freq[None].astype(dtype), factor
    lengths_that_matter = lengths.tolist()
    tables = {length: rope_frequencies(rope, length) for length in set(lengths_that_matter)}
    rows = [tables[length][0] for length in lengths_that_matter]
    # The factor is the same for all lengths.
    return np.array(rows, dtype), rope_frequencies(rope, 0)[1]


@lru_cache(maxsize=64)
def _of_any_length(rope: RopeConfig) -> tuple[Frequencies, float]:
    return rope_frequencies(rope, 0)


def rope_frequencies(rope: RopeConfig, length: int) -> tuple[Frequencies, float]:
    """Radians per position of each rotated pair, and the factor on cos and sin.

    Args:
        rope: the checkpoint's facts.
        length: tokens of the text that the rotated token belongs to (`ForwardBatch.rope_lens`).

    Returns:
        inv_freq [dim / 2], attention factor.
    """
    match rope.scaling:
        case None:
            return _unscaled(rope.theta, rope.dim), 1.0
        case LinearRopeScaling(factor=factor):
            return _unscaled(rope.theta, rope.dim) / factor, 1.0
        case DynamicRopeScaling() as scaling:
            return _unscaled(_dynamic_theta(rope, scaling, length), rope.dim), 1.0
        case Llama3RopeScaling() as scaling:
            return _llama3(_unscaled(rope.theta, rope.dim), scaling), 1.0
        case YarnRopeScaling() as scaling:
            return _yarn(rope, scaling), scaling.attention_factor
        case LongRopeScaling() as scaling:
            is_long = length > scaling.original_max_position
            divisors = np.array(scaling.long_factor if is_long else scaling.short_factor)
            return _unscaled(rope.theta, rope.dim) / divisors, scaling.attention_factor
        case ProportionalRopeScaling(num_turning=num_turning, factor=factor):
            inv_freq = _unscaled(rope.theta, rope.dim) / factor
            return np.where(np.arange(rope.dim // 2) < num_turning, inv_freq, 0.0), 1.0


def _unscaled(theta: float, dim: int) -> Frequencies:
    return np.asarray(theta ** (-np.arange(0, dim, 2) / dim))


def _dynamic_theta(rope: RopeConfig, scaling: DynamicRopeScaling, length: int) -> float:
    stretch = max(length, scaling.original_max_position) / scaling.original_max_position
    growth = scaling.factor * stretch - (scaling.factor - 1)
    return float(rope.theta * growth ** (rope.dim / (rope.dim - 2)))


def _llama3(inv_freq: Frequencies, scaling: Llama3RopeScaling) -> Frequencies:
    """Kept above `high_freq_factor` turns over the trained length, divided below `low_freq_factor`."""
    num_turns = scaling.original_max_position * inv_freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return _blend(inv_freq / scaling.factor, inv_freq, (num_turns - low) / (high - low))


def _yarn(rope: RopeConfig, scaling: YarnRopeScaling) -> Frequencies:
    """Peng et al. 2023, section 3.2: pairs that turn more than `beta_fast` times are kept."""

    def pair_that_turns(num_turns: float) -> float:
        wavelength = scaling.original_max_position / num_turns  # = 2 pi theta^(2 pair / dim)
        return rope.dim / 2 * math.log(wavelength / (2 * math.pi), rope.theta)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    if first == last:
        last += 0.001  # as in transformers: the ramp needs a width
    ramp = (np.arange(rope.dim // 2, dtype=np.float64) - first) / (last - first)
    inv_freq = _unscaled(rope.theta, rope.dim)
    return _blend(inv_freq, inv_freq / scaling.factor, ramp)


def _blend(low: Frequencies, high: Frequencies, ramp: Frequencies) -> Frequencies:
    """`low` where ramp <= 0, `high` where ramp >= 1, linear between."""
    weight = np.clip(ramp, 0, 1)
    return (1 - weight) * low + weight * high
