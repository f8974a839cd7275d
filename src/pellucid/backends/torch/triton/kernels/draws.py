"""Draws on a GPU: weights of tokens and their race, bit for bit those of execution/odds.py and randomness.py.

Numbers are single products and sums, which the compiler must not fuse (`enable_fp_fusion=False`; a test looks into the
PTX). Words of 32 bits are in uint64, where a product is whole.
"""

import triton
import triton.language as tl

from pellucid.backends import draw_arithmetic as own

_MIN_EXPONENT = tl.constexpr(own.MIN_EXPONENT)
_ROUND = tl.constexpr(own.ROUND)
_P0, _P1, _P2, _P3, _P4, _P5 = (tl.constexpr(each) for each in own.POLYNOMIAL)
_LOW = tl.constexpr(own.WORD - 1)
_MULTIPLIER_0, _MULTIPLIER_1 = (tl.constexpr(each) for each in own.MULTIPLIERS)
_STEP_0, _STEP_1 = (tl.constexpr(each) for each in own.KEY_STEPS)
_ROUNDS = tl.constexpr(own.NUM_ROUNDS)
_GROUP, _HALF = tl.constexpr(own.GROUP), tl.constexpr(own.HALF_GROUP)
_LANES = tl.constexpr(own.LANES)
_LOG_2, _ROOT = tl.constexpr(own.LOG_2), tl.constexpr(own.ROOT_OF_HALF)
_LAST_ODD, _LAST_TERM = tl.constexpr(own.LAST_ODD), tl.constexpr(1 / own.LAST_ODD)
_F32_BIAS, _F32_MANTISSA = tl.constexpr(127), tl.constexpr(23)
_F64_BIAS, _F64_MANTISSA = tl.constexpr(1022), tl.constexpr(52)  # of a number in 1/2 .. 1
_F64_EXPONENT, _F64_FRACTION = tl.constexpr(1022 << 52), tl.constexpr((1 << 52) - 1)
_UNIT = tl.constexpr(2.0**-52)  # of noise


@triton.jit
def weights_kernel(
    weights,  # f32 [N, V]
    logits,  # f32 [N, V], without NaN
    peaks,  # f32 [N]: the largest logit, finite
    sharpness,  # f32 [N]
    num_tokens,
    WIDTH: tl.constexpr,
):
    """As `Odds.weights`."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_token = tokens < num_tokens
    found = tl.load(logits + row * num_tokens + tokens, is_token, other=float("-inf"))
    exponents = (found - tl.load(peaks + row)) * tl.load(sharpness + row)
    exponents = tl.maximum(exponents, _MIN_EXPONENT)
    whole = (exponents + _ROUND) - _ROUND
    fraction = exponents - whole
    power = tl.full((WIDTH,), _P0, tl.float32)
    power = power * fraction + _P1
    power = power * fraction + _P2
    power = power * fraction + _P3
    power = power * fraction + _P4
    power = power * fraction + _P5
    scale = ((whole.to(tl.int32) + _F32_BIAS) << _F32_MANTISSA).to(tl.float32, bitcast=True)
    power = tl.where(exponents <= _MIN_EXPONENT, 0.0, power * scale)
    tl.store(weights + row * num_tokens + tokens, power, is_token)


@triton.jit
def _philox(a, b, c, d, left, right):
    """The first two, and all, words of blocks: Philox4x32-10 with counters (a, b, c, d), uint64."""
    for _ in tl.static_range(_ROUNDS):
        first, second = a * _MULTIPLIER_0, c * _MULTIPLIER_1
        a, c = (second >> 32) ^ b ^ left, (first >> 32) ^ d ^ right
        b, d = second & _LOW, first & _LOW
        left, right = (left + _STEP_0) & _LOW, (right + _STEP_1) & _LOW
    return a, b, c, d


@triton.jit
def _minus_log(u, WIDTH: tl.constexpr):
    """As `randomness.minus_log`: u f64, above 0 and below 1."""
    bits = u.to(tl.int64, bitcast=True)
    e = (bits >> _F64_MANTISSA) - _F64_BIAS
    m = ((bits & _F64_FRACTION) | _F64_EXPONENT).to(tl.float64, bitcast=True)
    is_small = m < tl.full((WIDTH,), _ROOT, tl.float64)
    m = tl.where(is_small, m * 2, m)
    e = tl.where(is_small, e - 1, e)
    t = (m - 1) / (m + 1)
    square = t * t
    series = tl.full((WIDTH,), _LAST_TERM, tl.float64)
    for odd in tl.static_range(_LAST_ODD - 2, 1, -2):
        series = series * square + tl.full((WIDTH,), 1 / odd, tl.float64)
    series = series * square
    return -(e.to(tl.float64) * tl.full((WIDTH,), _LOG_2, tl.float64) + 2 * t * (series + 1))


@triton.jit
def race_kernel(
    times,  # f64 [N, parts]: the first arrival among the tokens of a part
    winners,  # int32 [N, parts]: its token, the lowest of equals; V: none arrives
    weights,  # f32 [N, V]
    seeds_low,  # int64 [N], like the following
    seeds_high,
    streams,
    positions,
    num_tokens,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part, num_parts = tl.program_id(1), tl.num_programs(1)
    tokens = part * WIDTH + tl.arange(0, WIDTH)
    left, right = tl.load(seeds_low + row).to(tl.uint64), tl.load(seeds_high + row).to(tl.uint64)
    zeros = tl.zeros((WIDTH,), tl.uint64)
    position = zeros + tl.load(positions + row).to(tl.uint64)
    stream = zeros + tl.load(streams + row).to(tl.uint64)

    blocks = (tokens // _GROUP * _LANES + tokens % _LANES).to(tl.uint64)
    word_0, word_1, word_2, word_3 = _philox(blocks, position, stream, zeros, left, right)
    number = tokens // _LANES % 4
    low = tl.where(number == 0, word_0, word_1)
    high = tl.where(number == 2, word_2, word_3)
    word = tl.where(number < 2, low, high)
    upper = tl.where(tokens // _HALF % 2 == 0, word & 0xFFFF, word >> 16)
    word_0, word_1, word_2, word_3 = _philox(
        tokens.to(tl.uint64), position, stream, zeros + 1, left, right
    )
    bits = (upper << 36) | (word_0 << 4) | (word_1 >> 28)
    noise = _minus_log(1 - (bits.to(tl.float64) + 0.5) * _UNIT, WIDTH)

    own_weights = tl.load(weights + row * num_tokens + tokens, tokens < num_tokens, other=0)
    runs = own_weights > 0
    arrivals = noise / tl.where(runs, own_weights, 1).to(tl.float64)
    arrivals = tl.where(runs, arrivals, float("inf"))
    first = tl.min(arrivals, axis=0)
    winner = tl.min(tl.where(runs & (arrivals == first), tokens, num_tokens), axis=0)
    tl.store(times + row * num_parts + part, first)
    tl.store(winners + row * num_parts + part, winner)


@triton.jit
def winner_kernel(
    tokens,  # int32 [N]
    times,  # as of `race_kernel`
    winners,
    num_parts,
    num_tokens,
    PARTS: tl.constexpr,  # a power of 2
):
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS)
    is_part = parts < num_parts
    arrivals = tl.load(times + row * num_parts + parts, is_part, other=float("inf"))
    own = tl.load(winners + row * num_parts + parts, is_part, other=num_tokens)
    first = tl.min(arrivals, axis=0)
    tl.store(tokens + row, tl.min(tl.where(arrivals == first, own, num_tokens), axis=0))
