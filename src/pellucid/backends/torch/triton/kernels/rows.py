"""Kernels of norms, activations, rotations and of storing keys and values: a program for each row, so that nothing
depends on the rows beside it. A row is a token, or one of its heads.

What an op before or after does to such a row is done in the same launch: the sum that is normed, the norm of a head
that is rotated and stored, the rounding of what a product reads. None of it changes a bit.
"""

import triton
import triton.language as tl


@triton.jit
def _store_row(
    y,
    rounded,
    own,
    row,
    numbers,
    is_number,
    num_rows,
    num_numbers,
    HAS_FLOATS: tl.constexpr,
    PLANES: tl.constexpr,
):
    """Some numbers of a row: into y f32 [rows, num_numbers], and into bf16 [PLANES, rows, num_numbers / PLANES] as
    `linear_kernel` reads them."""
    if HAS_FLOATS:
        tl.store(y + row * num_numbers + numbers, own, is_number)
    if PLANES > 0:
        columns = num_numbers // PLANES
        places = (numbers % PLANES * num_rows + row) * columns + numbers // PLANES
        # As many numbers of a thread as in f32, else the sum of a norm would have another order.
        places = tl.max_contiguous(places, 4)
        tl.store(rounded + places, own.to(tl.bfloat16), is_number)


@triton.jit
def _normed(own, weights, num_numbers, eps, HAS_WEIGHT: tl.constexpr):
    normed = own / tl.sqrt(tl.sum(own * own, axis=0) / num_numbers + eps)
    if HAS_WEIGHT:
        normed *= weights
    return normed


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    y,  # f32 [rows, num_numbers]
    rounded,  # bf16, as of `_store_row`
    sums,  # f32 [rows, num_numbers]
    x,  # f32, of row r at r // heads * stride + r % heads * head_stride
    added,  # f32 [rows, num_numbers]
    weight,  # f32 [num_numbers]
    eps,
    num_rows,
    num_numbers,
    heads,
    stride,
    head_stride,
    HAS_FLOATS: tl.constexpr,
    PLANES: tl.constexpr,  # 0: nothing is rounded
    HAS_SUMS: tl.constexpr,  # x + added is kept, and normed
    HAS_WEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of 2
):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, WIDTH)
    is_number = numbers < num_numbers
    source = x + row // heads * stride + row % heads * head_stride
    own = tl.load(source + numbers, is_number, other=0)
    weights = own
    if HAS_WEIGHT:
        weights = tl.load(weight + numbers, is_number, other=0)
    if HAS_SUMS:
        own += tl.load(added + row * num_numbers + numbers, is_number, other=0)
        tl.store(sums + row * num_numbers + numbers, own, is_number)
    normed = _normed(own, weights, num_numbers, eps, HAS_WEIGHT)
    _store_row(
        *(y, rounded, normed, row, numbers, is_number, num_rows, num_numbers),
        *(HAS_FLOATS, PLANES),
    )


@triton.jit
def _sigmoid(x):
    """With an exponential that cannot overflow."""
    decay = tl.exp(-tl.abs(x))
    return tl.where(x < 0, decay, 1.0) / (1 + decay)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        y = x * _sigmoid(x)
    elif ACTIVATION == "gelu":
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(a)) / 2 is sigmoid(2 a)
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        tl.static_assert(ACTIVATION == "clamped_swish")
        gate = tl.where(x > 7, 7.0, x)  # a NaN stays
        y = gate * _sigmoid(1.702 * gate)
    return y


@triton.jit(do_not_specialize=["num_rows"])
def gated_kernel(
    y,  # f32 [rows, num_numbers]
    rounded,  # bf16, as of `_store_row`
    gate_up,  # f32 [rows, 2 * num_numbers]
    num_rows,
    num_numbers,
    stride,
    ACTIVATION: tl.constexpr,
    HAS_FLOATS: tl.constexpr,
    PLANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_number = numbers < num_numbers
    gate = tl.load(gate_up + row * stride + numbers, is_number, other=0)
    up = tl.load(gate_up + row * stride + num_numbers + numbers, is_number, other=0)
    if ACTIVATION == "clamped_swish":
        up = 1 + tl.where(up > 7, 7.0, tl.where(up < -7, -7.0, up))
    _store_row(
        *(y, rounded, _activated(gate, ACTIVATION) * up, row, numbers, is_number),
        *(num_rows, num_numbers, HAS_FLOATS, PLANES),
    )


@triton.jit
def _placed(
    head,
    weight,
    cos,
    sin,
    eps,
    numbers,
    is_number,
    num_numbers,
    half,
    HAS_NORM: tl.constexpr,
    HAS_ROPE: tl.constexpr,
):
    """A head, normed, and its first 2 * half numbers rotated: number i meets number i + half."""
    own = tl.load(head + numbers, is_number, other=0)
    if HAS_NORM:
        root = tl.sqrt(tl.sum(own * own, axis=0) / num_numbers + eps)
        own = own / root * tl.load(weight + numbers, is_number, other=0)
    if HAS_ROPE:
        is_first, is_turned = numbers < half, numbers < 2 * half
        partners = tl.where(is_first, numbers + half, numbers - half)
        others = tl.load(head + partners, is_turned, other=0)
        if HAS_NORM:
            others = others / root * tl.load(weight + partners, is_turned, other=0)
        pairs = tl.where(is_first, numbers, numbers - half)
        own_cos = tl.load(cos + pairs, is_turned, other=1)
        own_sin = tl.load(sin + pairs, is_turned, other=0)
        turned = own * own_cos + tl.where(is_first, -others, others) * own_sin
        own = tl.where(is_turned, turned, own)
    return own


@triton.jit
def heads_kernel(
    y,  # f32 [T, q_heads, D]
    keys,  # f32 or bf16 [blocks, block_size, kv_heads * D], a block `key_stride` after the other
    values,
    q,  # f32 [T, q_heads, D], a token `q_stride` after the other
    k,  # f32 [T, kv_heads, D]
    v,
    slots,  # int64 [T]
    q_weight,  # f32 [D]
    k_weight,
    q_cos,  # f32 [T, half]
    q_sin,
    k_cos,
    k_sin,
    q_eps,
    k_eps,
    num_numbers,  # D
    q_half,
    k_half,
    q_heads,
    kv_heads,
    q_stride,
    k_stride,
    v_stride,
    key_stride,
    value_stride,
    HAS_KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    Q_NORM: tl.constexpr,
    Q_ROPE: tl.constexpr,
    K_NORM: tl.constexpr,
    K_ROPE: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of 2
):
    """Queries and keys of a step, normed and rotated. Keys and values are stored, rounded to nearest even."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    numbers = tl.arange(0, WIDTH)
    is_number = numbers < num_numbers
    if head < q_heads:
        turns = token * q_half
        own = _placed(
            *(q + token * q_stride + head * num_numbers, q_weight, q_cos + turns, q_sin + turns),
            *(q_eps, numbers, is_number, num_numbers, q_half, Q_NORM, Q_ROPE),
        )
        tl.store(y + (token * q_heads + head) * num_numbers + numbers, own, is_number)
    elif HAS_KV:
        slot = tl.load(slots + token)
        own_head = (head - q_heads) % kv_heads
        place = (slot % BLOCK_SIZE * kv_heads + own_head) * num_numbers + numbers
        if head < q_heads + kv_heads:
            turns = token * k_half
            own = _placed(
                *(k + token * k_stride + own_head * num_numbers, k_weight),
                *(k_cos + turns, k_sin + turns),
                *(k_eps, numbers, is_number, num_numbers, k_half, K_NORM, K_ROPE),
            )
            key = keys + slot // BLOCK_SIZE * key_stride + place
            tl.store(key, own.to(keys.dtype.element_ty), is_number)
        else:
            source = v + token * v_stride + own_head * num_numbers
            own = tl.load(source + numbers, is_number, other=0)
            value = values + slot // BLOCK_SIZE * value_stride + place
            tl.store(value, own.to(values.dtype.element_ty), is_number)


@triton.jit
def peaks_kernel(
    peaks,  # int64 [R, parts]
    logits,  # f32 [R, num_tokens]
    num_tokens,
    stride,
    WIDTH: tl.constexpr,
):
    """The largest of some logits of a row, and its first token: the order of the upper 32 bits is that of the logits, a
    NaN after all; the lower ones are larger for earlier tokens."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_token = tokens < num_tokens
    own = tl.load(logits + row * stride + tokens, is_token, other=float("-inf"))
    bits = own.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(own == 0, 0, order)  # -0 is 0
    order = tl.where(own != own, 0x7FFFFFFF, order)
    peak = (order.to(tl.int64) << 32) + (0x7FFFFFFF - tokens)
    tl.store(peaks + row * tl.num_programs(1) + tl.program_id(1), tl.max(peak, axis=0))


@triton.jit(do_not_specialize=["num_rows"])
def largest_kernel(
    largest,  # int32 [2, R]
    peaks,  # int64 [R, num_parts]
    bits,  # int32 [R, num_tokens], of the logits
    num_parts,
    num_rows,
    stride,
    PARTS: tl.constexpr,
):
    """Of each row the first token with the largest logit, and the bits of the logit."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS)
    own = tl.load(peaks + row * num_parts + parts, parts < num_parts, other=-0x7FFFFFFFFFFFFFFF)
    token = 0x7FFFFFFF - (tl.max(own, axis=0) & 0x7FFFFFFF)
    tl.store(largest + row, token.to(tl.int32))
    tl.store(largest + num_rows + row, tl.load(bits + row * stride + token))
