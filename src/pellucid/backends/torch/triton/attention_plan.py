"""What programs of the attention kernels compute in a step: plain numbers, written by the host."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pellucid.backends.ops import ForwardBatch, IntArray

NUM_COLUMNS = 9


class AttentionPlan(NamedTuple):
    """Work on tiles of rows; a row is a query head at a position.

    Columns of both tables: the first row of the request in the step; the request; the position of this row; begin and
    end of the request's rows, times heads, that are left from the tile on; the first range of keys and the one after
    the last; the place in scratch memory of the result, or -1: the output; what the number of a group of positions
    differs by from its place among open keys.

    Attributes:
        items: int32 [items, NUM_COLUMNS]. An item with a place has one range.
        folds: int32 [folds, NUM_COLUMNS] tiles whose ranges, from their place on, are then folded.
        num_partials: places.
    """

    items: npt.NDArray[np.int32]
    folds: npt.NDArray[np.int32]
    num_partials: int


def plan_attention(
    batch: ForwardBatch,
    heads: int,
    rows: int,
    num_keys: int,
    window: int | None,
    num_shares: float,
    most_partials: int,
    first_groups: IntArray | None = None,
) -> AttentionPlan:
    """Shares the ranges of a step out among programs. A tile with more than an equal share of them is split into
    ranges, as far as there are places.

    Args:
        heads: query heads of a kv-head.
        rows: of a tile.
        num_keys: of a range.
        num_shares: programs for each kv-head.
        first_groups: [B] the last column, by request.
    """
    # A step waits for its plan: methods of arrays take half the time of NumPy's functions on few numbers.
    starts = batch.query_start[:-1]
    counts = (batch.query_start[1:] - starts) * heads
    tiles = -(-counts // rows)  # of each request
    requests = np.arange(len(counts)).repeat(tiles)
    begins = (np.arange(len(requests)) - (tiles.cumsum() - tiles).repeat(tiles)) * rows
    ends = counts[requests]
    positions = batch.positions[starts][requests]
    newest = positions + (np.minimum(ends, begins + rows) - 1) // heads
    firsts: Any = 0
    if window is not None:
        firsts = np.maximum(0, positions + begins // heads - window + 1) // num_keys
    lasts = newest // num_keys + 1
    groups: Any = 0 if first_groups is None else first_groups[requests]
    table = np.empty((len(requests), NUM_COLUMNS), np.int32)
    columns = (starts[requests], requests, positions, begins, ends, firsts, lasts, -1, groups)
    for number, column in enumerate(columns):
        table[:, number] = column

    num_ranges = lasts - firsts
    is_split = (num_ranges > 1) & (num_ranges * num_shares > num_ranges.sum())
    is_split &= (num_ranges * is_split).cumsum() <= most_partials
    folds, own = table[is_split], num_ranges[is_split]
    folds[:, 7] = own.cumsum() - own
    parts = folds.repeat(own, axis=0)
    parts[:, 7] = np.arange(len(parts))
    parts[:, 5] += parts[:, 7] - folds[:, 7].repeat(own)
    parts[:, 6] = parts[:, 5] + 1
    items = np.concatenate((table[~is_split], parts))
    longest_first = (items[:, 5] - items[:, 6]).argsort(kind="stable")
    return AttentionPlan(items[longest_first], folds, len(parts))
