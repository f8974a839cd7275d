"""Storing keys and values as codes: the definition of numpy/kv_codes.py, bit for bit.

A program has one head of a token. Numbers are single sums, products and correctly rounded quotients.
"""

import triton
import triton.language as tl

from pellucid.backends.numpy import kv_codes

_SMALLEST = tl.constexpr(float(kv_codes.SMALLEST))
_ROTATE_IN = tl.constexpr(float(kv_codes.ROTATE_IN))
_ROUND = tl.constexpr(
    12582912.0
)  # 1.5 * 2^23: adding it to an f32 below 2^22 rounds to nearest even
_TRIALS = tl.constexpr(len(kv_codes.EXTREME_CODES))
_LOG_GROUP = tl.constexpr(5)  # of 32 numbers


@triton.jit
def _away_from_zero(x):
    """Rounded to what a bf16 can hold, f32 still."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0xFFFF) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def _rounded(x, scale, BITS: tl.constexpr):
    """Codes of groups [GROUPS, SIZE], f32."""
    codes = (x * tl.div_rn(1.0, scale)[:, None] + _ROUND) - _ROUND
    return codes if BITS == 8 else tl.minimum(tl.maximum(codes, -8.0), 7.0)


@triton.jit
def _squared_error(x, scale, GROUPS: tl.constexpr):
    """Of groups of 32 with codes of 4 bits [GROUPS]: the second half is added to the first until one is left."""
    off = _rounded(x, scale, 4) * scale[:, None] - x
    off = off * off
    for i in tl.static_range(_LOG_GROUP):
        halves = tl.reshape(off, (GROUPS, 2, 16 >> i))
        first, second = tl.split(tl.permute(halves, (0, 2, 1)))
        off = first + second
    return tl.reshape(off, (GROUPS,))


@triton.jit
def _best_scale(x, extreme, GROUPS: tl.constexpr):
    """The scale with the least error, the first of equals: codes -8, -7.75, -8.25, -7.5 ... of the extreme number."""
    best = _away_from_zero(tl.div_rn(extreme, -8.0))
    least = _squared_error(x, best, GROUPS)
    for i in range(1, _TRIALS):  # written out, it spills on compute capability 8.9
        step = (i + 1) // 2 * 0.25
        code = tl.where(i % 2 == 1, 8.0 - step, 8.0 + step)
        scale = _away_from_zero(tl.div_rn(extreme, -code))
        error = _squared_error(x, scale, GROUPS)
        best = tl.where(error < least, scale, best)
        least = tl.minimum(error, least)
    return best


@triton.jit
def store_codes_kernel(
    codes,  # int8, or uint8 with two codes, [blocks, block_size, K, bytes], a block `code_stride` after the other
    scales,  # bf16 [blocks, block_size, K, NUM_GROUPS], likewise
    x,  # f32 [T, K, HEAD_DIM], a token `stride` after the other
    slots,  # int64 [T]
    num_heads,  # K
    stride,
    code_stride,
    scale_stride,
    HEAD_DIM: tl.constexpr,
    NUMBERS: tl.constexpr,  # of a head as it is stored
    NUM_GROUPS: tl.constexpr,
    BITS: tl.constexpr,
    IS_ROTATED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUPS: tl.constexpr,  # NUM_GROUPS, up to a power of 2
    SIZE: tl.constexpr,  # of a group, likewise
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    numbers = tl.arange(0, GROUPS * SIZE)
    z = tl.load(x + token * stride + head * HEAD_DIM + numbers, numbers < HEAD_DIM, other=0)
    if IS_ROTATED:
        z = z * _ROTATE_IN
        for i in tl.static_range(_LOG_GROUP):
            pairs = tl.reshape(z, (GROUPS << i, 2, 16 >> i))
            first, second = tl.split(tl.permute(pairs, (0, 2, 1)))
            turned = tl.permute(tl.join(first + second, first - second), (0, 2, 1))
            z = tl.reshape(turned, (GROUPS * SIZE,))
    grouped = tl.reshape(z, (GROUPS, SIZE))
    magnitude = tl.abs(grouped)
    is_finite = tl.min((magnitude < float("inf")).to(tl.int32), axis=1) > 0
    grouped = tl.where(is_finite[:, None], grouped, 0.0)
    magnitude = tl.where(is_finite[:, None], magnitude, 0.0)
    places = tl.arange(0, SIZE)[None, :]
    is_peak = magnitude == tl.max(magnitude, axis=1)[:, None]
    place = tl.min(tl.where(is_peak, places, SIZE), axis=1)  # of equals the first
    extreme = tl.sum(tl.where(places == place[:, None], grouped, 0.0), axis=1)
    has_codes = tl.abs(extreme) >= _SMALLEST
    extreme = tl.where(has_codes, extreme, 1.0)
    if BITS == 8:
        scale = _away_from_zero(tl.div_rn(tl.abs(extreme), 127.0))
    else:
        scale = _best_scale(grouped, extreme, GROUPS)
    own = tl.where(has_codes[:, None], _rounded(grouped, scale, BITS), 0.0).to(tl.int32)
    scale = tl.where(is_finite, tl.where(has_codes, scale, 0.0), float("inf"))

    slot = tl.load(slots + token)
    row = slot % BLOCK_SIZE * num_heads + head
    groups = tl.arange(0, GROUPS)
    own_scales = scales + slot // BLOCK_SIZE * scale_stride + row * NUM_GROUPS + groups
    tl.store(own_scales, scale.to(tl.bfloat16), groups < NUM_GROUPS)
    own_codes = codes + slot // BLOCK_SIZE * code_stride
    if BITS == 8:
        flat = tl.reshape(own, (GROUPS * SIZE,)).to(tl.int8)
        tl.store(own_codes + row * NUMBERS + numbers, flat, numbers < NUMBERS)
    else:
        even, odd = tl.split(tl.reshape(own + 8, (GROUPS * SIZE // 2, 2)))
        places = tl.arange(0, GROUPS * SIZE // 2)
        packed = (even | (odd << 4)).to(tl.uint8)
        tl.store(own_codes + row * (NUMBERS // 2) + places, packed, places < NUMBERS // 2)
