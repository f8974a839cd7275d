"""The kernel of `linear` on a GPU: matrices of bf16 and of codes, from one template.

A program computes a tile of outputs for a tile of rows, and adds up inputs from the first to the last. The inputs of a
step of this sum are a constant, and nothing is split, so the order of a sum does not follow from the number of rows.
Weights are the first operand of a product, rows its columns (decision 0010). Rows and weights are rounded to bf16,
sums are f32.

Codes are read as words of 32 bits. The first codes of all words of a step meet the inputs that belong to them, then the
second ones do: so no code changes its place, and a thread reads 16 bytes at once.
"""

import triton
import triton.language as tl


def _decoder(bits: int) -> str:
    """PTX of `_pairs_of_planes`: two words of codes become, for each plane, the two numbers of bf16 of a register.

    A code c in the lower bits of a bf16 of 128 is 128 + c. A code of 8 bits has its sign apart: it is its lower 7 bits,
    less 128 if it is negative, and that is added as -128 or -256.
    """
    planes = 32 // bits
    word, other, offset, upper, lower = (f"${planes + i}" for i in range(5))
    lines = [
        ".reg .b32 halves, own, number, sign, one, zero;",
        "mov.b32 one, 0x3F803F80;",  # 1, twice
        "mov.b32 zero, 0x80008000;",  # -0, which changes no sum
    ]
    for plane in range(planes):
        shift = plane * bits % 16
        if shift == 0:  # the lower halves of both words, or the upper ones
            lines.append(
                f"prmt.b32 halves, {word}, {other}, {'0x5410' if plane == 0 else '0x7632'};"
            )
        lines.append(f"shr.u32 own, halves, {shift};")
        mask = "0x000F000F" if bits == 4 else "0x007F007F"
        lines.append(f"lop3.b32 number, own, {mask}, 0x43004300, 0xEA;")  # and, or
        if bits == 8:
            lines.append("lop3.b32 sign, own, 0x00800080, 0xC300C300, 0xEA;")
        lines += [
            f"fma.rn.bf16x2 number, number, one, {offset if bits == 4 else 'sign'};",
            f"fma.rn.bf16x2 own, number, {lower}, zero;",
            f"fma.rn.bf16x2 ${plane}, number, {upper}, own;",
        ]
    return "{" + " ".join(lines) + "}"


_DECODE_4, _DECODE_8 = tl.constexpr(_decoder(4)), tl.constexpr(_decoder(8))
# Outputs are written before the last input is read.
_REGISTERS_4, _REGISTERS_8 = (
    tl.constexpr(",".join(["=&r"] * planes + ["r"] * 5)) for planes in (8, 4)
)


@triton.jit
def _of_groups(
    numbers,
    factors,
    outputs,
    is_output,
    start,
    num_groups,
    num_blocks,
    GROUP: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The scale or minimum of each column of a tile, f32 [outputs, COLUMNS], or [outputs, 1] of one group."""
    groups = tl.arange(0, NUM_GROUPS)
    if GROUP > 0:
        groups += start // GROUP
    is_group = is_output[:, None] & (groups < num_groups)[None, :]
    found = tl.load(numbers + outputs[:, None] * num_groups + groups[None, :], is_group, other=0)
    if SCALE == "exponent":  # the bits of an f32 are its exponent's
        own = (found.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    else:
        own = found.to(tl.float32)
    if SCALE == "product":
        block = start // BLOCK
        factor = tl.load(factors + outputs * num_blocks + block, is_output, other=0)
        own = own * factor.to(tl.float32)[:, None]
    return _by_column(own, GROUP, NUM_GROUPS, COLUMNS)


@triton.jit
def _by_column(own, GROUP: tl.constexpr, NUM_GROUPS: tl.constexpr, COLUMNS: tl.constexpr):
    """[outputs, groups] -> [outputs, COLUMNS]; of one group it stays as it is."""
    if NUM_GROUPS > 1:
        wide = tl.broadcast_to(own[:, :, None], (own.shape[0], NUM_GROUPS, GROUP))
        own = tl.reshape(wide, (own.shape[0], COLUMNS))
    return own


@triton.jit
def _planes(
    codes,  # words [OUTPUTS, COLUMNS]
    zeros,
    scales,  # f32, like the minimums
    minimums,
    PLANES: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_CODEBOOK: tl.constexpr,
    BOOK_0: tl.constexpr,
    BOOK_1: tl.constexpr,
    BOOK_2: tl.constexpr,
    BOOK_3: tl.constexpr,
):
    """The numbers of the first codes of all words, of the second ones, and so on: bf16 [OUTPUTS, COLUMNS] each."""
    planes = ()
    for plane in tl.static_range(PLANES):
        if PLANES == 8:
            own = (codes >> (4 * plane)) & 15
        else:  # signed
            own = (codes << (24 - 8 * plane)) >> 24
        if HAS_CODEBOOK:
            # A load would wait for the codes, and these could not be read ahead.
            low = tl.where((own & 4) == 0, BOOK_0, BOOK_1)
            high = tl.where((own & 4) == 0, BOOK_2, BOOK_3)
            word = tl.where((own & 8) == 0, low, high)
            numbers = ((word << (24 - 8 * (own & 3))) >> 24).to(tl.float32)
        else:
            numbers = own.to(tl.float32)
        numbers = (numbers - zeros) * scales
        if HAS_MINIMUMS:
            numbers += minimums
        planes = planes + (numbers.to(tl.bfloat16),)  # type: ignore[assignment]  # noqa: RUF005
    return planes


@triton.jit
def _pairs_of_planes(codes, zeros, scales, PLANES: tl.constexpr):
    """`_planes` of formats without minimums and codebooks, in a third of the instructions.

    A scale is a sum of two numbers of bf16: so a product is rounded once, but for a last bit of few of them.
    """
    upper = scales.to(tl.bfloat16)
    lower = (scales - upper.to(tl.float32)).to(tl.bfloat16)
    offsets = (tl.zeros((1, 1), tl.float32) - 128 - zeros).to(tl.bfloat16)
    if PLANES == 8:
        planes = tl.inline_asm_elementwise(
            *(_DECODE_4, _REGISTERS_4, [codes, offsets, upper, lower], (tl.bfloat16,) * 8),
            is_pure=True,
            pack=2,
        )
    else:
        planes = tl.inline_asm_elementwise(
            *(_DECODE_8, _REGISTERS_8, [codes, offsets, upper, lower], (tl.bfloat16,) * 4),
            is_pure=True,
            pack=2,
        )
    return planes


@triton.jit
def _side_by_side(planes, PLANES: tl.constexpr, COLUMNS: tl.constexpr):
    """Planes [OUTPUTS, COLUMNS] one after the other: [OUTPUTS, PLANES * COLUMNS]. No number changes its thread."""
    joined = tl.join(tl.join(planes[0], planes[1]), tl.join(planes[2], planes[3]))
    if PLANES == 8:
        last = tl.join(tl.join(planes[4], planes[5]), tl.join(planes[6], planes[7]))
        joined = tl.permute(tl.join(joined, last), (0, 4, 3, 2, 1))
    else:
        joined = tl.permute(joined, (0, 3, 2, 1))
    return tl.reshape(joined, (joined.shape[0], PLANES * COLUMNS))


@triton.jit
def sums_of_products(
    x,  # as of `linear_kernel`, like the following
    stored,
    scales,
    scale_factors,
    minimums,
    minimum_factors,
    zero_points,
    rows,  # int64 [ROWS]
    is_row,
    num_rows,  # of a plane of x
    outputs,  # int64 [OUTPUTS] of the stored matrix
    is_output,
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
    COLUMNS: tl.constexpr,
):
    """A tile of products, f32 [OUTPUTS, ROWS]."""
    NUM_GROUPS: tl.constexpr = 1 if GROUP == 0 else COLUMNS // GROUP
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    places = tl.arange(0, PLANES * COLUMNS)
    plane_starts = places // COLUMNS * (num_rows * num_columns) + places % COLUMNS
    for start in range(0, num_columns, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        is_column = columns < num_columns
        codes = tl.load(
            stored + outputs[:, None] * num_columns + columns[None, :],
            is_output[:, None] & is_column[None, :],
            other=0,
        )
        if SCALE != "none":
            own_scales = _of_groups(
                *(scales, scale_factors, outputs, is_output, start, num_groups, num_blocks),
                *(GROUP, NUM_GROUPS, BLOCK, SCALE, COLUMNS),
            )
        if HAS_MINIMUMS:
            own_minimums = _of_groups(
                *(minimums, minimum_factors, outputs, is_output, start, num_groups, num_blocks),
                *(GROUP, NUM_GROUPS, BLOCK, SCALE, COLUMNS),
            )
        if ZERO_POINT < 0:
            zeros = _of_groups(
                *(zero_points, scale_factors, outputs, is_output, start, num_groups, num_blocks),
                *(GROUP, NUM_GROUPS, BLOCK, "number", COLUMNS),
            )
        if SCALE == "none":
            weights = codes
        else:
            if not HAS_MINIMUMS:
                own_minimums = 0
            if ZERO_POINT >= 0:
                zeros = ZERO_POINT
            if IN_PAIRS:
                planes = _pairs_of_planes(codes, zeros, own_scales, PLANES)
            else:
                planes = _planes(
                    *(codes, zeros, own_scales, own_minimums, PLANES),
                    *(HAS_MINIMUMS, HAS_CODEBOOK, BOOK_0, BOOK_1, BOOK_2, BOOK_3),
                )
            weights = _side_by_side(planes, PLANES, COLUMNS)
        inputs = tl.load(
            x + rows[None, :] * num_columns + (plane_starts + start)[:, None],
            is_row[None, :] & (places % COLUMNS < num_columns - start)[:, None],
            other=0,
        )
        sums = tl.dot(weights, inputs, sums)
    return sums


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    y,  # f32 [T, N]
    x,  # bf16 [PLANES, T, columns]
    stored,  # bf16, or words of codes, [N, columns]
    scales,  # [N, groups]
    scale_factors,  # f16 [N, blocks]
    minimums,
    minimum_factors,
    zero_points,  # uint8 [N, groups]
    num_rows,
    num_outputs,
    num_columns,
    num_groups,
    num_blocks,
    PLANES: tl.constexpr,  # codes of a word: 8 of 4 bits, 4 of 8; of bf16 1
    GROUP: tl.constexpr,  # columns that share a scale; 0: all
    BLOCK: tl.constexpr,  # columns that share a factor
    SCALE: tl.constexpr,  # "none", "number", "exponent", "product"
    ZERO_POINT: tl.constexpr,  # -1: each group has its own
    HAS_MINIMUMS: tl.constexpr,
    HAS_CODEBOOK: tl.constexpr,
    BOOK_0: tl.constexpr,  # words of 4 numbers of the codebook
    BOOK_1: tl.constexpr,
    BOOK_2: tl.constexpr,
    BOOK_3: tl.constexpr,
    IN_PAIRS: tl.constexpr,  # whether the words of two columns are decoded together, by instructions of NVIDIA's
    OUTPUTS: tl.constexpr,  # of a tile
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    outputs = tl.program_id(1).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_output, is_row = outputs < num_outputs, rows < num_rows
    sums = sums_of_products(
        *(x, stored, scales, scale_factors, minimums, minimum_factors, zero_points),
        *(rows, is_row, num_rows, outputs, is_output, num_columns, num_groups, num_blocks),
        *(PLANES, GROUP, BLOCK, SCALE, ZERO_POINT, HAS_MINIMUMS, HAS_CODEBOOK),
        *(BOOK_0, BOOK_1, BOOK_2, BOOK_3, IN_PAIRS, OUTPUTS, ROWS, COLUMNS),
    )
    tl.store(
        y + rows[None, :] * num_outputs + outputs[:, None],
        sums,
        is_row[None, :] & is_output[:, None],
    )
