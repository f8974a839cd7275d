"""Experts on a GPU: which rows meet which expert, their products, and the sum of a row's experts.

Each used pair of a row and an expert has a slot. Slots are in order of experts, and those of an expert in order of
rows; they are whole numbers that no timing decides. A launch has one size for all steps of as many rows, so that a
graph can hold it.
"""

import triton
import triton.language as tl

from pellucid.backends.torch.triton.kernels.linear import sums_of_products


@triton.jit(do_not_specialize=["num_rows"])
def count_kernel(
    counts,  # int32 [E]: rows that use an expert
    weights,  # f32 [T, E]; 0: the expert is not used
    num_rows,
    num_experts,
    ROWS: tl.constexpr,  # that are looked at together
):
    expert = tl.program_id(0)
    total = 0
    for start in range(0, num_rows, ROWS):
        total += tl.sum(_uses(weights, start, expert, num_rows, num_experts, ROWS), axis=0)
    tl.store(counts + expert, total)


@triton.jit
def _uses(weights, start, expert, num_rows, num_experts, ROWS: tl.constexpr):
    """int32 [ROWS]: whether rows use an expert."""
    rows = start + tl.arange(0, ROWS)
    own = tl.load(weights + rows.to(tl.int64) * num_experts + expert, rows < num_rows, other=0)
    return (own != 0).to(tl.int32)  # a NaN is used


@triton.jit(do_not_specialize=["num_rows"])
def place_kernel(
    slots,  # int32 [T, E], of pairs that are used
    sources,  # int32 [slots]: the row of each
    tiles,  # int32 [tiles, 3], as of `grouped_linear_kernel`; zeros
    counts,  # int32 [E]
    weights,
    num_rows,
    num_experts,
    EXPERTS: tl.constexpr,  # a power of 2
    ROWS: tl.constexpr,
    TILE: tl.constexpr,  # slots
):
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS)
    every = tl.load(counts + experts, experts < expert, other=0)
    first = tl.sum(every, axis=0)
    tile = tl.sum((every + TILE - 1) // TILE, axis=0)
    end = first + tl.load(counts + expert)
    for begin in range(first, end, TILE):
        tl.store(tiles + tile * 3, expert)
        tl.store(tiles + tile * 3 + 1, begin)
        tl.store(tiles + tile * 3 + 2, tl.minimum(begin + TILE, end))
        tile += 1
    for start in range(0, num_rows, ROWS):
        uses = _uses(weights, start, expert, num_rows, num_experts, ROWS)
        own = first + tl.cumsum(uses, axis=0) - uses
        rows = start + tl.arange(0, ROWS)
        tl.store(slots + rows.to(tl.int64) * num_experts + expert, own, uses > 0)
        tl.store(sources + own, rows, uses > 0)
        first += tl.sum(uses, axis=0)


@triton.jit(do_not_specialize=["num_rows"])
def grouped_linear_kernel(
    y,  # f32 [slots, y_stride]: the first N numbers of a slot
    x,  # bf16 [PLANES, x rows, columns]
    stored,  # of all experts one after the other: bf16, or words of codes, [E * N, columns]
    scales,
    scale_factors,
    minimums,
    minimum_factors,
    zero_points,  # uint8 [E * N, groups]
    biases,  # f32 [E * N]
    sources,  # int32 [slots]: the row of x of each slot
    tiles,  # int32 [tiles, 3]: an expert, its first slot of the tile, the one after its last; 0 slots: nothing to do
    y_stride,
    num_rows,  # of x; what follows is as of `linear_kernel`
    num_outputs,
    num_columns,
    num_groups,
    num_blocks,
    PLANES: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    ZERO_POINT: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_CODEBOOK: tl.constexpr,
    BOOK_0: tl.constexpr,
    BOOK_1: tl.constexpr,
    BOOK_2: tl.constexpr,
    BOOK_3: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_SOURCES: tl.constexpr,  # else slots are rows of x
    HAS_BIASES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Products of slots, each with the matrix of its expert. A tile has neighbouring slots of one expert."""
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile).to(tl.int64)
    begin, end = tl.load(tile + 1).to(tl.int64), tl.load(tile + 2)
    if begin >= end:
        return
    own_outputs = tl.program_id(1).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    slots = begin + tl.arange(0, ROWS)
    is_output, is_row = own_outputs < num_outputs, slots < end
    if HAS_SOURCES:
        rows = tl.load(sources + slots, is_row, other=0).to(tl.int64)
    else:
        rows = slots
    outputs = expert * num_outputs + own_outputs
    sums = sums_of_products(
        *(x, stored, scales, scale_factors, minimums, minimum_factors, zero_points),
        *(rows, is_row, num_rows, outputs, is_output, num_columns, num_groups, num_blocks),
        *(PLANES, GROUP, BLOCK, SCALE, ZERO_POINT, HAS_MINIMUMS, HAS_CODEBOOK),
        *(BOOK_0, BOOK_1, BOOK_2, BOOK_3, IN_PAIRS, OUTPUTS, ROWS, COLUMNS),
    )
    if HAS_BIASES:
        sums += tl.load(biases + outputs, is_output, other=0)[:, None]
    tl.store(
        y + slots[None, :] * y_stride + own_outputs[:, None],
        sums,
        is_row[None, :] & is_output[:, None],
    )


@triton.jit
def sum_kernel(
    y,  # f32 [T, M]
    x,  # f32 [slots, M]
    slots,  # int32 [T, E]
    weights,  # f32 [T, E]
    num_numbers,  # M
    num_experts,
    EXPERTS: tl.constexpr,  # a power of 2
    NUM_CHOSEN: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Of a row, the sum over its experts from the lowest to the highest of a weight times an output."""
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_number = numbers < num_numbers
    experts = tl.arange(0, EXPERTS)
    is_expert = experts < num_experts
    own_weights = tl.load(weights + row * num_experts + experts, is_expert, other=0)
    left = tl.where(own_weights != 0, experts, EXPERTS)
    total = tl.zeros((WIDTH,), tl.float32)
    for _ in range(NUM_CHOSEN):
        expert = tl.min(left, axis=0)
        if expert < EXPERTS:
            place = row * num_experts + expert
            slot = tl.load(slots + place).to(tl.int64)
            own = tl.load(x + slot * num_numbers + numbers, is_number, other=0)
            total += tl.load(weights + place) * own
        left = tl.where(left == expert, EXPERTS, left)
    tl.store(y + row * num_numbers + numbers, total, is_number)
