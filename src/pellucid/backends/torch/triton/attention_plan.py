"""What programs of the attention kernels compute in a step: plain numbers, written by the host."""

from typing import NamedTuple

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
    counts = np.diff(batch.query_start) * heads
    tiles = -(-counts // rows)  # of each request
    requests = np.repeat(np.arange(len(counts)), tiles)
    begins = (np.arange(len(requests)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * rows
    ends = counts[requests]
    positions = batch.positions[batch.query_start[:-1]][requests]
    newest = positions + (np.minimum(ends, begins + rows) - 1) // heads
    oldest = np.zeros_like(newest)
    if window is not None:
        oldest = np.maximum(0, positions + begins // heads - window + 1)
    firsts, lasts = oldest // num_keys, newest // num_keys + 1
    groups = np.zeros_like(firsts) if first_groups is None else first_groups[requests]
    nowhere = np.full_like(firsts, -1)
    columns = (batch.query_start[requests], requests, positions, begins, ends, firsts, lasts)
    table = np.stack((*columns, nowhere, groups), axis=1).astype(np.int32)

    num_ranges = lasts - firsts
    is_split = (num_ranges > 1) & (num_ranges * num_shares > num_ranges.sum())
    is_split &= np.cumsum(num_ranges * is_split) <= most_partials
    folds, own = table[is_split], num_ranges[is_split]
    folds[:, 7] = np.cumsum(own) - own
    parts = np.repeat(folds, own, axis=0)
    parts[:, 7] = np.arange(len(parts))
    parts[:, 5] += parts[:, 7] - np.repeat(folds[:, 7], own)
    parts[:, 6] = parts[:, 5] + 1
    items = np.concatenate((table[~is_split], parts))
    longest_first = np.argsort(items[:, 5] - items[:, 6], kind="stable")
    return AttentionPlan(items[longest_first], folds, len(parts))
