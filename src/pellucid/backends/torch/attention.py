"""Attention over the paged cache in products of one fixed shape (decision 0042).

Keys are read in ranges of a fixed length that are counted from position 0; queries in tiles of 16 positions. A
product has the shape that these give, whatever the step computes, and a row's place in it follows from its position.
A row folds its ranges in order, each with its own maximum; ranges of which it sees nothing change nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.backends.torch.arithmetic import capped, ordered_sum
from pellucid.backends.torch.batch import TILE, QueryTiles
from pellucid.backends.torch.kv_cache import TorchKVLayer


class AttentionSizes(NamedTuple):
    """The shape of products.

    Attributes:
        num_keys: of a range; a multiple of the largest block.
        num_tiles: of queries.
    """

    num_keys: int
    num_tiles: int

    def num_numbers(self, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
        """Of the tensors that exist at once while a range is folded: scores and weights; keys and values as they are
        read, without what no row sees, and by kv-head; queries and what they have seen."""
        scores = num_heads * TILE * self.num_keys
        both_halves = 2 * self.num_keys * num_kv_heads * head_dim
        rows = num_heads * TILE * head_dim
        return self.num_tiles * (5 * scores + 3 * both_halves + 6 * rows)


class _Fold(NamedTuple):
    """What a row has seen so far: [C * K, H / K * TILE, 1], and of values [..., D]."""

    peak: Tensor
    total: Tensor
    values: Tensor


def attend(
    q: Tensor,
    tiles: QueryTiles,
    tables: Tensor,
    kv_layer: TorchKVLayer,
    num_keys: int,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of C tiles: scaled q [C, TILE, H, D] -> [C, TILE, H, D].

    Args:
        tables: [C, blocks] of the tiles' requests.
        num_keys: of a range.
        sinks: [H].
    """
    num_tiles, _, num_heads, head_dim = q.shape
    num_kv_heads = kv_layer.num_kv_heads
    # [C * K, H / K * TILE, D]: the query heads of one kv-head are rows of one product.
    queries = q.reshape(num_tiles, TILE, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(num_tiles * num_kv_heads, -1, head_dim)
    shape = (*queries.shape[:2], 1)
    fold = _Fold(q.new_full(shape, -torch.inf), q.new_zeros(shape), torch.zeros_like(queries))
    firsts = tiles.positions[:, :1]  # [C, 1]
    own_groups = None
    if kv_layer.open_keys is not None:
        own_groups = kv_layer.open_keys.own_groups(tiles.slots, tiles.starts)[..., :head_dim]
    oldest = 0 if window is None else max(0, tiles.first - window + 1)
    for start in range(oldest // num_keys * num_keys, tiles.last + 1, num_keys):
        positions = start + torch.arange(num_keys, device=q.device)
        is_read = positions < tiles.ends[:, None]  # [C, keys]: some row of the tile sees it
        distances = tiles.positions[:, :, None] - positions
        is_hidden = (distances < 0) | ~is_read[:, None]  # [C, TILE, keys]
        if window is not None:
            is_read = is_read & (firsts - positions < window)
            is_hidden = is_hidden | (distances >= window)
        keys, values = kv_layer.read(tables, start, num_keys)
        if own_groups is not None:
            keys = _with_own_groups(keys, start, firsts, own_groups)
        # What no row sees may be the contents of another request's block, which may be NaN.
        k, v = (
            torch.where(is_read[..., None, None], half, half.new_zeros(()))
            .transpose(1, 2)
            .flatten(0, 1)
            for half in (keys, values)
        )
        scores = capped(torch.bmm(queries, k.transpose(1, 2)), softcap)
        by_head = scores.reshape(num_tiles, num_heads, TILE, num_keys)
        by_head = by_head.masked_fill(is_hidden[:, None], -torch.inf)
        fold = _folded(fold, by_head.reshape(scores.shape), v)
    if sinks is not None:
        own = sinks.reshape(num_kv_heads, -1, 1).expand(-1, -1, TILE).reshape(num_kv_heads, -1, 1)
        own = own.repeat(num_tiles, 1, 1)
        peak = torch.maximum(fold.peak, own)
        share = torch.exp(fold.peak - peak)
        fold = _Fold(peak, fold.total * share + torch.exp(own - peak), fold.values * share)
    by_tile = (fold.values / fold.total).reshape(num_tiles, num_heads, TILE, head_dim)
    return by_tile.transpose(1, 2)


def _with_own_groups(keys: Tensor, start: int, firsts: Tensor, own_groups: Tensor) -> Tensor:
    """Keys [C, keys, K, D] of positions from `start` on, as queries from positions `firsts` [C, 1] on read them: those
    of their own group of positions are `own_groups` [C, 32, K, D]. A range has whole groups."""
    size = own_groups.shape[1]
    begins = firsts // size * size - start
    is_here = (begins >= 0) & (begins < keys.shape[1])
    # Where the group is in another range, the first keys stay as they are.
    places = torch.where(is_here, begins, 0) + torch.arange(size, device=keys.device)
    own = torch.where(is_here[..., None, None], own_groups, keys[:, :size])
    return keys.scatter(1, places[..., None, None].expand_as(own), own)


def _folded(fold: _Fold, scores: Tensor, v: Tensor) -> _Fold:
    """What rows have seen once they have seen a range, too.

    Args:
        scores: [C * K, H / K * TILE, keys], -inf where a row must not see a key.
        v: [C * K, keys, D].
    """
    own_peak = scores.amax(dim=-1, keepdim=True)
    sees = own_peak != -torch.inf
    peak = torch.maximum(fold.peak, own_peak)
    base = torch.where(peak == -torch.inf, torch.zeros_like(peak), peak)
    weights, share = torch.exp(scores - base), torch.exp(fold.peak - base)
    total = fold.total * share + ordered_sum(weights)
    values = fold.values * share + torch.bmm(weights, v)
    after = _Fold(peak, total, values)
    return _Fold(*(torch.where(sees, new, old) for new, old in zip(after, fold, strict=True)))
