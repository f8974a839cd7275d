"""Kernels of norms, rotations and of storing keys and values: a program for each row, so that nothing depends on the
rows beside it. A row is a token, or one of its heads."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    y,  # f32 [rows, num_numbers]
    x,  # f32, of row r at r // heads * stride + r % heads * head_stride
    weight,  # f32 [num_numbers]
    eps,
    num_numbers,
    heads,
    stride,
    head_stride,
    HAS_WEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of 2
):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, WIDTH)
    is_number = numbers < num_numbers
    own = tl.load(
        x + row // heads * stride + row % heads * head_stride + numbers, is_number, other=0
    )
    normed = own / tl.sqrt(tl.sum(own * own, axis=0) / num_numbers + eps)
    if HAS_WEIGHT:
        normed *= tl.load(weight + numbers, is_number, other=0)
    tl.store(y + row * num_numbers + numbers, normed, is_number)


@triton.jit
def rope_kernel(
    y,  # f32 [T, heads, num_numbers]
    x,  # f32, as of `rms_norm_kernel`
    cos,  # f32 [T, half]
    sin,
    num_numbers,
    half,
    heads,
    stride,
    head_stride,
    WIDTH: tl.constexpr,  # of half a rotation, a power of 2
    REST: tl.constexpr,  # of numbers that are not rotated; 0: none
):
    row = tl.program_id(0).to(tl.int64)
    token = row // heads
    source = x + token * stride + row % heads * head_stride
    target = y + row * num_numbers
    numbers = tl.arange(0, WIDTH)
    is_number = numbers < half
    first = tl.load(source + numbers, is_number, other=0)
    second = tl.load(source + half + numbers, is_number, other=0)
    turn_cos = tl.load(cos + token * half + numbers, is_number, other=0)
    turn_sin = tl.load(sin + token * half + numbers, is_number, other=0)
    tl.store(target + numbers, first * turn_cos - second * turn_sin, is_number)
    tl.store(target + half + numbers, second * turn_cos + first * turn_sin, is_number)
    if REST > 0:
        others = 2 * half + tl.arange(0, REST)
        is_other = others < num_numbers
        tl.store(target + others, tl.load(source + others, is_other, other=0), is_other)


@triton.jit
def store_kernel(
    keys,  # f32 or bf16 [blocks, block_size, K * D], a block `key_stride` after the other
    values,
    k,  # f32, a token `k_stride` after the other
    v,
    slots,  # int64 [T]
    num_numbers,  # K * D
    key_stride,
    value_stride,
    k_stride,
    v_stride,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Both halves of a token, rounded to nearest even."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    place = slot % BLOCK_SIZE * num_numbers
    numbers = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_number = numbers < num_numbers
    own_keys = tl.load(k + token * k_stride + numbers, is_number, other=0)
    own_values = tl.load(v + token * v_stride + numbers, is_number, other=0)
    key = keys + slot // BLOCK_SIZE * key_stride + place + numbers
    value = values + slot // BLOCK_SIZE * value_stride + place + numbers
    tl.store(key, own_keys.to(keys.dtype.element_ty), is_number)
    tl.store(value, own_values.to(values.dtype.element_ty), is_number)
