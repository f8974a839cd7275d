"""Recurrent layers on a GPU: convolutions over a request's rows, and gated delta nets token by token.

A launch reads from tables which rows a request has and which slot its state, so that a graph can hold it. Nothing is
computed in chunks of tokens: their borders would have to be positions, and steps end anywhere.
"""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    """1 / (1 + exp(-x)), with an exponential that cannot overflow."""
    decay = tl.exp(-tl.abs(x))
    return tl.where(x < 0, decay, 1.0) / (1 + decay)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)); of a small exponential all digits (Goldberg 1991, theorem 4)."""
    power = tl.exp(-tl.abs(x))
    one = 1 + power
    log = tl.where(one == 1, power, tl.log(one) * power / tl.where(one == 1, 1.0, one - 1))
    return tl.maximum(x, 0.0) + log


@triton.jit
def _unit(x):
    """x / sqrt(sum of squares + 1e-6)."""
    return x / tl.sqrt(tl.sum(x * x, axis=0) + 1e-6)


@triton.jit
def convolution_kernel(
    y,  # f32 [T, C]
    x,  # f32 [T, C]
    weight,  # f32 [KERNEL, C]
    bias,  # f32 [C]
    states,  # f32 [slots, KERNEL - 1, C]: the rows before a request's next one
    rows,  # int32 [T, 3]: rows of the request before it in the step; the slot; whether the request begins in the step
    num_channels,
    KERNEL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SILU: tl.constexpr,  # of the result
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_channel = channels < num_channels
    before = tl.load(rows + row * 3)
    slot, begins = tl.load(rows + row * 3 + 1).to(tl.int64), tl.load(rows + row * 3 + 2)
    total = tl.zeros((WIDTH,), tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channels, is_channel, other=0)
    for k in tl.static_range(KERNEL):
        num_kept = tl.where(before + k < KERNEL - 1, num_channels, 0)
        kept = states + (slot * (KERNEL - 1) + before + k) * num_channels + channels
        own = x + (row + k - (KERNEL - 1)) * num_channels + channels
        numbers = tl.load(kept, channels < tl.where(begins == 0, num_kept, 0), other=0)
        numbers += tl.load(own, channels < num_channels - num_kept, other=0)
        total += numbers * tl.load(weight + k * num_channels + channels, is_channel, other=0)
    if IS_SILU:
        total *= _sigmoid(total)
    tl.store(y + row * num_channels + channels, total, is_channel)


@triton.jit
def keep_rows_kernel(
    states,  # as of `convolution_kernel`
    x,
    requests,  # int32 [B, 4]: the first row, rows, slot, whether the request begins in the step
    num_channels,
    KERNEL: tl.constexpr,
    TAPS: tl.constexpr,  # KERNEL - 1, up to a power of 2
    WIDTH: tl.constexpr,
):
    """The latest rows of each request become its state."""
    request = requests + tl.program_id(0) * 4
    first, count = tl.load(request).to(tl.int64), tl.load(request + 1)
    slot, begins = tl.load(request + 2).to(tl.int64), tl.load(request + 3)
    channels = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    taps = tl.arange(0, TAPS)
    num_taps = tl.where(count > 0, KERNEL - 1, 0)
    is_number = (taps < num_taps)[:, None] & (channels < num_channels)[None, :]
    places = count + taps
    is_read = (places < tl.where(begins == 0, KERNEL - 1, 0))[:, None]
    of_slot = states + slot * (KERNEL - 1) * num_channels + channels[None, :]
    own = x + (first + places - (KERNEL - 1))[:, None] * num_channels + channels[None, :]
    kept = of_slot + places[:, None] * num_channels
    numbers = tl.load(kept, is_number & is_read, other=0)
    numbers += tl.load(own, is_number & (places >= KERNEL - 1)[:, None], other=0)
    tl.debug_barrier()  # a place is read before another thread writes it
    tl.store(of_slot + taps[:, None] * num_channels, numbers, is_number)


@triton.jit
def delta_kernel(
    y,  # f32 [T, Hv, VALUE_DIM]
    qkv,  # f32 [T, 2 * Hk * KEY_DIM + Hv * VALUE_DIM]
    b,  # f32 [T, Hv]
    a,  # f32 [T, Hv]
    log_decay,  # f32 [Hv]
    step_bias,  # f32 [Hv]
    states,  # f32 [slots, Hv, KEY_DIM, VALUE_DIM]
    requests,  # as of `keep_rows_kernel`
    scale,  # of queries
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    IS_TILED: tl.constexpr,  # as `GatedDeltaNetConfig.tiled`
    KEYS: tl.constexpr,  # KEY_DIM, up to a power of 2
    VALUES: tl.constexpr,  # columns of a state that a program has
):
    """As `Ops.gated_delta_net`: the tokens of a request in order, some columns of one head's state."""
    request = requests + tl.program_id(0) * 4
    first, count = tl.load(request).to(tl.int64), tl.load(request + 1)
    slot, begins = tl.load(request + 2).to(tl.int64), tl.load(request + 3)
    head = tl.program_id(1)
    key_head = head % KEY_HEADS if IS_TILED else head // (VALUE_HEADS // KEY_HEADS)
    keys = tl.arange(0, KEYS)
    values = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    is_key, is_value = keys < KEY_DIM, values < VALUE_DIM
    state = states + (slot * VALUE_HEADS + head) * KEY_DIM * VALUE_DIM
    state += keys[:, None] * VALUE_DIM + values[None, :]
    is_read = (keys < tl.where(begins == 0, KEY_DIM, 0))[:, None] & is_value[None, :]
    matrix = tl.load(state, is_read, other=0)
    own_decay, own_bias = tl.load(log_decay + head), tl.load(step_bias + head)
    WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    for row in range(first, first + count):
        own = qkv + row * WIDTH
        query = own + key_head * KEY_DIM + keys
        q = _unit(tl.load(query, is_key, other=0)) * scale
        k = _unit(tl.load(query + KEY_HEADS * KEY_DIM, is_key, other=0))
        value = own + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + values
        v = tl.load(value, is_value, other=0)
        beta = _sigmoid(tl.load(b + row * VALUE_HEADS + head))
        step = _softplus(tl.load(a + row * VALUE_HEADS + head) + own_bias)
        matrix *= tl.exp(own_decay * step)
        error = v - tl.sum(matrix * k[:, None], axis=0)
        matrix += k[:, None] * (beta * error)[None, :]
        found = tl.sum(matrix * q[:, None], axis=0)
        tl.store(y + (row * VALUE_HEADS + head) * VALUE_DIM + values, found, is_value)
    is_written = (keys < tl.where(count > 0, KEY_DIM, 0))[:, None] & is_value[None, :]
    tl.store(state, matrix, is_written)
