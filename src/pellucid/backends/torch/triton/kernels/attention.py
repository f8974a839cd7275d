"""Paged attention in ranges of keys that are counted from position 0 (decision 0160).

A row is a query head at a position. A program computes a tile of rows of one request that read one kv-head. Rows are
those of a product's first operand, keys the columns of its second one. Rows do not meet, so a row has the same bits in
tiles of every size, wherever a tile begins. The weights of keys stay in registers as the first operand of their product
with values. Within a range a row sees `KEYS` keys at a time in order, with a maximum that begins anew in each range;
ranges are folded in order. Steps and ranges of which a row sees nothing change nothing, so a range may be computed by a
program of its own, and folded by `fold_kernel`.

Keys and values of 4 bits are two planes: the even dimensions, which are the lower halves of bytes, and the odd ones.
Rotated keys meet rotated queries; the caller rotates sums of rotated values back.
"""

import triton
import triton.language as tl


@triton.jit
def _capped(scores, softcap):
    """softcap * tanh(scores / softcap), with an exponential that may overflow."""
    return softcap - 2 * softcap / (tl.exp(2 * scores / softcap) + 1)


@triton.jit
def _sum_of_keys(x, KEYS: tl.constexpr, LOG_KEYS: tl.constexpr, ROWS: tl.constexpr):
    """f32 [ROWS, KEYS] -> [ROWS]: its second half is added to the first until one is left, in every layout."""
    for i in tl.static_range(LOG_KEYS):
        halves = tl.reshape(x, (ROWS, 2, KEYS // (2 << i)))
        first, second = tl.split(tl.permute(halves, (0, 2, 1)))
        x = first + second
    return tl.reshape(x, (ROWS,))


@triton.jit
def _shares(peak, own_peak):
    """Of what rows have seen, and of a range: the maximum of both, and the factors of sums."""
    both = tl.maximum(peak, own_peak)
    base = tl.where(both == float("-inf"), 0.0, both)
    return both, tl.exp(peak - base), tl.exp(own_peak - base)


@triton.jit
def _folded(sums, own, share, own_share, sees):
    """Rows that see nothing of a range keep their bits."""
    return tl.where(sees, sums * share + own * own_share, sums)


@triton.jit
def _finished(sums, total, share):
    return sums * share / total


@triton.jit
def _queries(
    q,
    rows,
    is_row,
    scale,
    PLANE: tl.constexpr,
    PLANES: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
    TYPE: tl.constexpr,
):
    """A plane of queries times `scale`, [ROWS, WIDTH]. `NUMBERS`: of a head in `q`."""
    dims = tl.arange(0, WIDTH) * PLANES + PLANE
    found = tl.load(
        q + rows[:, None] + dims[None, :], is_row[:, None] & (dims < NUMBERS)[None, :], other=0
    )
    return (found * scale).to(TYPE)


@triton.jit
def _numbers(
    codes,
    factors,
    places,
    factor_places,
    is_read,
    PLANE: tl.constexpr,
    FORMAT: tl.constexpr,
    NUMBERS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    TYPE: tl.constexpr,
):
    """A plane of keys or of values that are stored position by position, [KEYS, WIDTH] in `TYPE`.

    Args:
        places, factor_places: [KEYS] of a head's first number, and of its first factor.
        FORMAT: "floats", "bytes" of codes, "halves" of bytes.
        GROUP: columns of a plane that share a factor.
    """
    columns = tl.arange(0, WIDTH)
    COLUMNS: tl.constexpr = NUMBERS // 2 if FORMAT == "halves" else NUMBERS
    is_stored = is_read[:, None] & (columns < COLUMNS)[None, :]
    found = tl.load(codes + places[:, None] + columns[None, :], is_stored, other=0)
    if FORMAT == "floats":
        return found.to(TYPE)
    if FORMAT == "halves":
        own = ((found >> (4 * PLANE)) & 15).to(tl.float32) - 8
    else:
        own = found.to(tl.float32)
    NUM_GROUPS: tl.constexpr = (WIDTH + GROUP - 1) // GROUP
    groups = tl.arange(0, NUM_GROUPS)
    is_group = is_read[:, None] & (groups < (COLUMNS + GROUP - 1) // GROUP)[None, :]
    scales = tl.load(factors + factor_places[:, None] + groups[None, :], is_group, other=0)
    scales = scales.to(tl.float32)
    if NUM_GROUPS > 1:
        by_column = tl.broadcast_to(scales[:, :, None], (scales.shape[0], NUM_GROUPS, GROUP))
        scales = tl.reshape(by_column, (scales.shape[0], WIDTH))
    return (own * scales).to(TYPE)


@triton.jit
def _keys_by_dimension(
    codes,
    factors,
    places,
    group_places,
    is_read,
    is_group_read,
    minimums,
    PLANE: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    TYPE: tl.constexpr,
):
    """A plane of keys of which `GROUP` positions share each dimension's scale and minimum, [KEYS, WIDTH].

    Args:
        group_places: [KEYS / GROUP] of a head's first scale; of its first minimum `minimums` further.
    """
    columns = tl.arange(0, WIDTH)
    is_stored = columns < NUMBERS // 2
    found = tl.load(
        codes + places[:, None] + columns[None, :],
        is_read[:, None] & is_stored[None, :],
        other=0,
    )
    own = ((found >> (4 * PLANE)) & 15).to(tl.float32)
    of_groups = factors + group_places[:, None] + (2 * columns + PLANE)[None, :]
    is_factor = is_group_read[:, None] & is_stored[None, :]
    scales = _by_position(tl.load(of_groups, is_factor, other=0), WIDTH, KEYS, GROUP)
    lowest = _by_position(tl.load(of_groups + minimums, is_factor, other=0), WIDTH, KEYS, GROUP)
    return (own * scales + lowest).to(TYPE)


@triton.jit
def _by_position(found, WIDTH: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr):
    """[groups, WIDTH] -> f32 [KEYS, WIDTH]."""
    repeated = tl.broadcast_to(found.to(tl.float32)[:, None, :], (KEYS // GROUP, GROUP, WIDTH))
    return tl.reshape(repeated, (KEYS, WIDTH))


@triton.jit(do_not_specialize=["num_table_blocks"])  # it changes from step to step
def attention_kernel(
    output,  # f32 [T, H, value numbers]
    partial_values,  # f32 [partials, K, VALUE_PLANES, ROWS, VALUE_WIDTH]
    partial_facts,  # f32 [partials, K, 2, ROWS]: maximum, total
    q,  # f32 [T, H, QUERY_NUMBERS]
    sinks,  # f32 [H]
    num_items,  # int32 [1]
    items,  # int32 [items, COLUMNS], as `attention_plan.AttentionPlan`
    tables,  # int64 [B, blocks]
    keys,
    key_factors,
    values,
    value_factors,
    open_keys,  # bf16 [groups, positions, K, key numbers]
    scale,
    softcap,
    window,
    q_stride,  # of a token
    num_table_blocks,
    num_kv_heads,
    key_stride,  # of a block, like the following
    key_factor_stride,
    value_stride,
    value_factor_stride,
    HEADS: tl.constexpr,  # query heads of a kv-head
    BLOCK_SIZE: tl.constexpr,
    QUERY_NUMBERS: tl.constexpr,  # of a head in `q`
    KEY_FORMAT: tl.constexpr,  # of `_numbers`, or "dimensions"
    KEY_NUMBERS: tl.constexpr,  # of a head as it is stored
    KEY_GROUP: tl.constexpr,
    KEY_PLANES: tl.constexpr,
    KEY_WIDTH: tl.constexpr,  # of a plane, a power of 2
    VALUE_FORMAT: tl.constexpr,
    VALUE_NUMBERS: tl.constexpr,
    VALUE_GROUP: tl.constexpr,
    VALUE_PLANES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    NUM_KEY_FACTORS: tl.constexpr,  # of a position's head
    NUM_VALUE_FACTORS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    TYPE: tl.constexpr,  # of the operands of products
    RANGE: tl.constexpr,
    KEYS: tl.constexpr,
    LOG_KEYS: tl.constexpr,
    GROUP_POSITIONS: tl.constexpr,
    COLUMNS: tl.constexpr,  # of `items`
    ROWS: tl.constexpr,
):
    key_bytes: tl.constexpr = KEY_NUMBERS // KEY_PLANES
    value_columns: tl.constexpr = VALUE_NUMBERS // VALUE_PLANES
    for work in range(tl.program_id(0), tl.load(num_items) * num_kv_heads, tl.num_programs(0)):
        item = items + work // num_kv_heads * COLUMNS
        kv_head = work % num_kv_heads
        first_row, request, first_position = (
            tl.load(item).to(tl.int64),
            tl.load(item + 1).to(tl.int64),
            tl.load(item + 2),
        )
        begin, end = tl.load(item + 3), tl.load(item + 4)  # of the request's rows times HEADS
        first_range, last_range = tl.load(item + 5), tl.load(item + 6)
        partial, first_group = tl.load(item + 7), tl.load(item + 8)
        own = begin + tl.arange(0, ROWS)
        is_row = own < end
        positions = first_position + own // HEADS
        heads = kv_head * HEADS + own % HEADS
        rows = first_row + own // HEADS
        # Keys that some row of the tile sees: what is beyond may be another request's, which may be NaN.
        newest = first_position + (tl.minimum(end, begin + ROWS) - 1) // HEADS
        oldest = tl.maximum(0, first_position + begin // HEADS - window + 1)

        q_rows = rows * q_stride + heads * QUERY_NUMBERS
        query_0 = _queries(
            *(q, q_rows, is_row, scale, 0, KEY_PLANES, QUERY_NUMBERS, KEY_WIDTH, TYPE)
        )
        if KEY_PLANES == 2:
            query_1 = _queries(
                *(q, q_rows, is_row, scale, 1, KEY_PLANES, QUERY_NUMBERS, KEY_WIDTH, TYPE)
            )
        peak = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        sums_0 = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
        if VALUE_PLANES == 2:
            sums_1 = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
        for number in range(first_range, last_range):
            own_peak = tl.full((ROWS,), float("-inf"), tl.float32)
            own_weights = tl.zeros((ROWS, KEYS), tl.float32)
            own_0 = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
            if VALUE_PLANES == 2:
                own_1 = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
            start = tl.maximum(number * RANGE, oldest // KEYS * KEYS)
            stop = tl.minimum((number + 1) * RANGE, newest + 1)
            for step in range(start, stop, KEYS):
                own_keys = step + tl.arange(0, KEYS)
                is_read = (own_keys >= oldest) & (own_keys <= newest)
                blocks = tl.load(
                    tables + request * num_table_blocks + own_keys // BLOCK_SIZE, is_read, other=0
                )
                places = (own_keys % BLOCK_SIZE) * num_kv_heads + kv_head
                k_places = blocks * key_stride + places * key_bytes
                if KEY_FORMAT == "dimensions":
                    groups = step + tl.arange(0, KEYS // GROUP_POSITIONS) * GROUP_POSITIONS
                    is_group = (groups + GROUP_POSITIONS > oldest) & (groups <= newest)
                    group_blocks = tl.load(
                        tables + request * num_table_blocks + groups // BLOCK_SIZE,
                        is_group,
                        other=0,
                    )
                    own_factors = groups % BLOCK_SIZE // GROUP_POSITIONS * 2 * num_kv_heads
                    group_places = (
                        group_blocks * key_factor_stride + (own_factors + kv_head) * KEY_NUMBERS
                    )
                    minimums = num_kv_heads * KEY_NUMBERS
                    k = _keys_by_dimension(
                        *(keys, key_factors, k_places, group_places, is_read, is_group, minimums),
                        *(0, KEY_NUMBERS, KEY_WIDTH, KEYS, GROUP_POSITIONS, TYPE),
                    )
                    scores = tl.dot(query_0, tl.trans(k), input_precision="ieee")
                    k = _keys_by_dimension(
                        *(keys, key_factors, k_places, group_places, is_read, is_group, minimums),
                        *(1, KEY_NUMBERS, KEY_WIDTH, KEYS, GROUP_POSITIONS, TYPE),
                    )
                    scores = tl.dot(query_1, tl.trans(k), scores, input_precision="ieee")
                    # Rows read their own group of positions as it was before it became codes.
                    if (
                        step + KEYS
                        > (first_position + begin // HEADS) // GROUP_POSITIONS * GROUP_POSITIONS
                    ):
                        opened = (first_group + own_keys // GROUP_POSITIONS).to(tl.int64)
                        opened = opened * GROUP_POSITIONS + own_keys % GROUP_POSITIONS
                        opened = (opened * num_kv_heads + kv_head) * KEY_NUMBERS
                        is_open = is_read & (own_keys // GROUP_POSITIONS + first_group >= 0)
                        dims = 2 * tl.arange(0, KEY_WIDTH)
                        is_stored = is_open[:, None] & (dims < KEY_NUMBERS)[None, :]
                        even = open_keys + opened[:, None] + dims[None, :]
                        k = tl.load(even, is_stored, other=0)
                        open_scores = tl.dot(query_0, tl.trans(k), input_precision="ieee")
                        k = tl.load(even + 1, is_stored, other=0)
                        open_scores = tl.dot(
                            query_1, tl.trans(k), open_scores, input_precision="ieee"
                        )
                        is_own = (own_keys // GROUP_POSITIONS)[None, :] == (
                            positions // GROUP_POSITIONS
                        )[:, None]
                        scores = tl.where(is_own, open_scores, scores)
                else:
                    k_factors = blocks * key_factor_stride + places * NUM_KEY_FACTORS
                    k = _numbers(
                        *(keys, key_factors, k_places, k_factors, is_read, 0, KEY_FORMAT),
                        *(KEY_NUMBERS, KEY_GROUP, KEY_WIDTH, TYPE),
                    )
                    scores = tl.dot(query_0, tl.trans(k), input_precision="ieee")
                if HAS_SOFTCAP:
                    scores = _capped(scores, softcap)
                distances = positions[:, None] - own_keys[None, :]
                is_seen = (distances >= 0) & (distances < window) & is_read[None, :]
                scores = tl.where(is_seen, scores, float("-inf"))

                both = tl.maximum(own_peak, tl.max(scores, axis=1))
                base = tl.where(both == float("-inf"), 0.0, both)
                share = tl.exp(own_peak - base)
                own_peak = both
                weights = tl.exp(scores - base[:, None]).to(TYPE)
                own_weights = own_weights * share[:, None] + weights.to(tl.float32)
                v_places = blocks * value_stride + places * value_columns
                v_factors = blocks * value_factor_stride + places * NUM_VALUE_FACTORS
                v = _numbers(
                    *(values, value_factors, v_places, v_factors, is_read, 0, VALUE_FORMAT),
                    *(VALUE_NUMBERS, VALUE_GROUP, VALUE_WIDTH, TYPE),
                )
                own_0 = tl.dot(weights, v, own_0 * share[:, None], input_precision="ieee")
                if VALUE_PLANES == 2:
                    v = _numbers(
                        *(values, value_factors, v_places, v_factors, is_read, 1, VALUE_FORMAT),
                        *(VALUE_NUMBERS, VALUE_GROUP, VALUE_WIDTH, TYPE),
                    )
                    own_1 = tl.dot(weights, v, own_1 * share[:, None], input_precision="ieee")
            sees = own_peak != float("-inf")
            peak, share, own_share = _shares(peak, own_peak)
            own_total = _sum_of_keys(own_weights, KEYS, LOG_KEYS, ROWS)
            total = _folded(total, own_total, share, own_share, sees)
            of_rows = share[:, None], own_share[:, None], sees[:, None]
            sums_0 = _folded(sums_0, own_0, *of_rows)
            if VALUE_PLANES == 2:
                sums_1 = _folded(sums_1, own_1, *of_rows)
        lanes = tl.arange(0, ROWS)
        columns = tl.arange(0, VALUE_WIDTH)
        if partial >= 0:
            place = partial.to(tl.int64) * num_kv_heads + kv_head
            tl.store(partial_facts + place * 2 * ROWS + lanes, peak)
            tl.store(partial_facts + (place * 2 + 1) * ROWS + lanes, total)
            own_values = (
                partial_values
                + place * VALUE_PLANES * VALUE_WIDTH * ROWS
                + lanes[:, None] * VALUE_WIDTH
                + columns[None, :]
            )
            tl.store(own_values, sums_0)
            if VALUE_PLANES == 2:
                tl.store(own_values + VALUE_WIDTH * ROWS, sums_1)
        else:
            if HAS_SINKS:
                own_sinks = tl.load(sinks + heads, is_row, other=0)
                peak, share, own_share = _shares(peak, own_sinks)
                total = total * share + own_share
            else:
                share = tl.full((ROWS,), 1.0, tl.float32)
            row_places = (rows * num_kv_heads * HEADS + heads) * VALUE_NUMBERS
            own_output = output + row_places[:, None] + (columns * VALUE_PLANES)[None, :]
            is_output = is_row[:, None] & (columns < value_columns)[None, :]
            tl.store(own_output, _finished(sums_0, total[:, None], share[:, None]), is_output)
            if VALUE_PLANES == 2:
                odd = _finished(sums_1, total[:, None], share[:, None])
                tl.store(own_output + 1, odd, is_output)


@triton.jit
def fold_kernel(
    output,  # as of `attention_kernel`, like the following
    partial_values,
    partial_facts,
    sinks,
    num_items,
    items,  # with partials `partial` .. `partial` + `last_range` - `first_range`
    num_kv_heads,
    HEADS: tl.constexpr,
    VALUE_NUMBERS: tl.constexpr,
    VALUE_PLANES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Folds ranges that programs have computed apart."""
    value_columns: tl.constexpr = VALUE_NUMBERS // VALUE_PLANES
    num_parts = num_kv_heads * VALUE_PLANES
    for work in range(tl.program_id(0), tl.load(num_items) * num_parts, tl.num_programs(0)):
        item = items + work // num_parts * COLUMNS
        kv_head, plane = work % num_parts // VALUE_PLANES, work % VALUE_PLANES
        first_row = tl.load(item).to(tl.int64)
        begin, end = tl.load(item + 3), tl.load(item + 4)
        num_ranges = tl.load(item + 6) - tl.load(item + 5)
        partial = tl.load(item + 7).to(tl.int64)
        own = begin + tl.arange(0, ROWS)
        is_row = own < end
        heads = kv_head * HEADS + own % HEADS
        lanes, columns = tl.arange(0, ROWS), tl.arange(0, VALUE_WIDTH)
        peak = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
        for number in range(num_ranges):
            place = (partial + number) * num_kv_heads + kv_head
            own_peak = tl.load(partial_facts + place * 2 * ROWS + lanes)
            own_total = tl.load(partial_facts + (place * 2 + 1) * ROWS + lanes)
            own_sums = tl.load(
                partial_values
                + (place * VALUE_PLANES + plane) * VALUE_WIDTH * ROWS
                + lanes[:, None] * VALUE_WIDTH
                + columns[None, :]
            )
            sees = own_peak != float("-inf")
            peak, share, own_share = _shares(peak, own_peak)
            total = _folded(total, own_total, share, own_share, sees)
            sums = _folded(sums, own_sums, share[:, None], own_share[:, None], sees[:, None])
        if HAS_SINKS:
            own_sinks = tl.load(sinks + heads, is_row, other=0)
            peak, share, own_share = _shares(peak, own_sinks)
            total = total * share + own_share
        else:
            share = tl.full((ROWS,), 1.0, tl.float32)
        row_places = ((first_row + own // HEADS) * num_kv_heads * HEADS + heads) * VALUE_NUMBERS
        tl.store(
            output + row_places[:, None] + (columns * VALUE_PLANES + plane)[None, :],
            _finished(sums, total[:, None], share[:, None]),
            is_row[:, None] & (columns < value_columns)[None, :],
        )


@triton.jit(do_not_specialize=["num_rows"])
def rotation_kernel(
    y,  # f32 [rows, Y_NUMBERS]
    x,  # f32, a row begins at `row` // heads * stride + `row` % heads * X_NUMBERS
    num_rows,
    heads,
    stride,
    FACTOR: tl.constexpr,
    X_NUMBERS: tl.constexpr,
    Y_NUMBERS: tl.constexpr,
    GROUPS: tl.constexpr,  # of 32 numbers, a power of 2
    ROWS: tl.constexpr,
):
    """Each group of 32 numbers times a Hadamard matrix and `FACTOR`, as `numpy.kv_codes.rotate`; numbers that are
    not there are zeros."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    numbers = tl.arange(0, GROUPS * 32)
    is_row = (rows < num_rows)[:, None]
    starts = rows // heads * stride + rows % heads * X_NUMBERS
    found = tl.load(
        x + starts[:, None] + numbers[None, :],
        is_row & (numbers < X_NUMBERS)[None, :],
        other=0,
    )
    z = found * FACTOR
    for i in tl.static_range(5):
        pairs = tl.reshape(z, (ROWS, GROUPS << i, 2, 16 >> i))
        first, second = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
        turned = tl.permute(tl.join(first + second, first - second), (0, 1, 3, 2))
        z = tl.reshape(turned, (ROWS, GROUPS * 32))
    tl.store(
        y + rows[:, None] * Y_NUMBERS + numbers[None, :],
        z,
        is_row & (numbers < Y_NUMBERS)[None, :],
    )
