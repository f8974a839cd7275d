"""The noise of tokens: a function of (seed, stream, position, token id) and of nothing else.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is a bijection of
counters for every key. The key is the seed; the counter names the position, the stream and the token. So
no generator has a state, and every caller gets the same noise for a token: a draft model, a
batch of another size, a part that is computed again. `csrc/kernels/philox.h` is the same natively.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]  # 32-bit words, in 64 bits for their products

_LOW, _HALF = np.uint64(WORD - 1), np.uint64(32)
_MULTIPLIERS = np.array(MULTIPLIERS, np.uint64)[:, None]
_KEY_STEPS = np.array(KEY_STEPS, np.uint64)


def exponential_noise(
    seed: int, stream: int, positions: int | IntArray, token_ids: IntArray
) -> FloatArray:
    """Exponentially distributed numbers > 0 of mean 1, independent of each other.

    -log(1 - v), where v has 52 random bits: the upper 16 from the block with counter (block, position,
    stream, 0), the lower 36 from that with counter (token id, position, stream, 1). The upper ones tell
    of nearly every token that it cannot win, so the lower bits of most tokens are never computed.

    Args:
        seed: the request's, 0 <= seed < 2^64.
        stream: which of the request's completions, 0 <= stream < 2^32.
        positions: indices in the request's tokens, prompt included, of the tokens to be drawn, < 2^32.
        token_ids: that may be drawn, < 2^32; of a shape that `positions` broadcast with.

    Returns:
        For each token at each position, in the shape of both together.
    """
    assert 0 <= seed < 2**64
    assert 0 <= stream < WORD
    positions, token_ids = np.broadcast_arrays(positions, token_ids)
    counters = np.empty((4, 2, *token_ids.shape), np.uint64)
    counters[0] = token_ids // GROUP * LANES + token_ids % LANES, token_ids
    counters[1], counters[2] = positions, stream
    counters[3, 0], counters[3, 1] = 0, 1
    words = philox((seed % WORD, seed // WORD), counters.reshape(4, -1)).reshape(counters.shape)
    upper = np.choose(token_ids // LANES % 4, words[:, 0])
    upper = upper >> (token_ids // HALF_GROUP % 2 * 16).astype(np.uint64) & np.uint64(0xFFFF)
    lower = words[0, 1] << np.uint64(4) | words[1, 1] >> np.uint64(28)
    bits = upper << np.uint64(36) | lower
    v = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return minus_log(1 - v)  # exact: v is a multiple of 2^-53


def philox(key: tuple[int, int], counters: Words) -> Words:
    """Four words for each counter.

    Args:
        key: two words.
        counters: [4, N] words.
    """
    keys = np.array(key, np.uint64) + np.arange(NUM_ROUNDS, dtype=np.uint64)[:, None] * _KEY_STEPS
    multiplied, passed = counters[[0, 2]], counters[[1, 3]]  # [2, N]
    for round_key in (keys & _LOW)[..., None]:
        products = (_MULTIPLIERS * multiplied)[::-1]
        multiplied = products >> _HALF ^ passed ^ round_key
        passed = products & _LOW
    return np.stack([multiplied[0], passed[0], multiplied[1], passed[1]])


def minus_log(u: FloatArray) -> FloatArray:
    """-log(u) of 0 < u < 1, within some units in the last place.

    Sums and products in a fixed order, so that every machine gets the same bits: u = m 2^e with m next
    to 1, and log(m) = 2 atanh((m - 1) / (m + 1)) by its series.
    """
    m, e = np.frexp(u)
    small = m < ROOT_OF_HALF
    m, e = np.where(small, m * 2, m), np.where(small, e - 1, e)
    t = (m - 1) / (m + 1)
    square = t * t
    series = np.full_like(t, 1 / LAST_ODD)
    for odd in range(LAST_ODD - 2, 1, -2):
        series = series * square + 1 / odd
    log: FloatArray = e * LOG_2 + 2 * t * (series * square + 1)
    return -log
