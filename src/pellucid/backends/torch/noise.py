"""The noise of tokens on a device: that of execution/randomness.py, bit for bit.

Words of 32 bits are in int64, which every device multiplies modulo 2^64. Sums and products of f64 are single ops, so no
device fuses them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.backends.draw_arithmetic import (
    GROUP,
    HALF_GROUP,
    KEY_STEPS,
    LANES,
    LAST_ODD,
    LOG_2,
    MULTIPLIERS,
    NUM_ROUNDS,
    ROOT_OF_HALF,
    WORD,
)

_LOW = WORD - 1
_HALF_BITS, _LOWER_BITS = 16, 36


class NoiseKeys(NamedTuple):
    """What the noise of N draws is a function of, besides the tokens: [N, 1] int64 words each."""

    seed_low: Tensor
    seed_high: Tensor
    stream: Tensor
    position: Tensor

    def of(self, draws: Tensor) -> "NoiseKeys":
        """Those of some draws, [S] each."""
        return NoiseKeys(*(each[draws, 0] for each in self))


def upper_bits(keys: NoiseKeys, vocab_size: int) -> Tensor:
    """The first 16 bits of each token, [N, V] int64."""
    num_groups = -(-vocab_size // GROUP)
    blocks = torch.arange(num_groups * LANES, device=keys.position.device)
    words = torch.stack(philox(keys, blocks, 0), dim=1)  # [N, words, groups * lanes]
    by_lane = words.unflatten(2, (num_groups, LANES)).transpose(1, 2)  # [N, groups, words, lanes]
    halves = (by_lane & 0xFFFF, by_lane >> _HALF_BITS)
    # [N, groups, halves, words, lanes]: the order of a group's tokens.
    return torch.stack(halves, dim=2).flatten(1)[:, :vocab_size]


def exponential_noise(keys: NoiseKeys, token_ids: Tensor, upper: Tensor) -> Tensor:
    """As `randomness.exponential_noise`, f64.

    Args:
        keys: of a shape that broadcasts with the tokens.
        upper: bits of the tokens.
    """
    words = philox(keys, token_ids, 1)
    lower = words[0] << 4 | words[1] >> 28
    bits = upper << _LOWER_BITS | lower
    v = (bits.double() + 0.5) * 2.0**-52
    return _minus_log(1 - v)


def philox(keys: NoiseKeys, first: Tensor, last: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of the blocks with counters (first, position, stream, last)."""
    a, b, c, d = torch.broadcast_tensors(
        first, keys.position, keys.stream, torch.full_like(keys.position, last)
    )
    left, right = keys.seed_low, keys.seed_high
    for _ in range(NUM_ROUNDS):
        first_product, second_product = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a = (second_product >> 32 & _LOW) ^ b ^ left
        b = second_product & _LOW
        c = (first_product >> 32 & _LOW) ^ d ^ right
        d = first_product & _LOW
        left, right = (left + KEY_STEPS[0]) & _LOW, (right + KEY_STEPS[1]) & _LOW
    return a, b, c, d


def _minus_log(u: Tensor) -> Tensor:
    """As `randomness.minus_log`."""
    m, e = torch.frexp(u)
    is_small = m < ROOT_OF_HALF
    m, e = torch.where(is_small, m * 2, m), torch.where(is_small, e - 1, e)
    t = (m - 1) / (m + 1)
    square = t * t
    series = torch.full_like(t, 1 / LAST_ODD)
    for odd in range(LAST_ODD - 2, 1, -2):
        series = series * square
        series = series + 1 / odd
    series = series * square
    return -(e.double() * LOG_2 + 2 * t * (series + 1))


assert HALF_GROUP * 2 == GROUP == 8 * LANES  # what `upper_bits` is laid out for
