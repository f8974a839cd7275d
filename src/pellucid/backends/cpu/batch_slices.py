"""Splits the forward batch of a step into smaller batches that compute the same rows."""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from pellucid.backends.ops import ForwardBatch, HostArray, IntArray, RowSource


class BatchSlice(Struct, frozen=True):
    """Some neighbouring rows of a batch, to be computed after those before them.

    Args:
        batch: a batch of these rows alone.
        logits_rows: where its rows of logits are among those of the whole batch.
    """

    batch: ForwardBatch
    logits_rows: IntArray


class _LaterRows(Struct, frozen=True):
    """Some of the rows of a source, which is asked for them when they are read."""

    source: RowSource
    own: slice

    def __getitem__(self, rows: slice, /) -> HostArray:
        start, stop, _ = rows.indices(self.own.stop - self.own.start)
        return self.source[self.own.start + start : self.own.start + stop]


def slices(batch: ForwardBatch, max_rows: int) -> Iterator[BatchSlice]:
    """The batch as slices of at most `max_rows` rows: chunked prefill, within a step."""
    num_rows = len(batch.token_ids)
    starts, stops = batch.query_start[:-1], batch.query_start[1:]
    for first in range(0, num_rows, max_rows):
        rows = slice(first, min(first + max_rows, num_rows))
        requests = np.flatnonzero((starts < rows.stop) & (stops > rows.start))
        query_start = np.clip(batch.query_start[[*requests, requests[-1] + 1]], first, rows.stop)
        # Positions of a request that later slices store are not in the cache yet.
        missing = np.maximum(stops[requests] - rows.stop, 0)
        logits_rows = np.flatnonzero(
            (batch.logits_indices >= rows.start) & (batch.logits_indices < rows.stop)
        )
        yield BatchSlice(
            ForwardBatch(
                token_ids=batch.token_ids[rows],
                positions=batch.positions[rows],
                rope_lens=batch.rope_lens[rows],
                slot_mapping=batch.slot_mapping[:, rows],
                query_start=query_start - first,
                seq_lens=batch.seq_lens[requests] - missing,
                block_tables=batch.block_tables[:, requests],
                logits_indices=batch.logits_indices[logits_rows] - first,
                state_slots=batch.state_slots[requests],
                received=None if batch.received is None else _LaterRows(batch.received, rows),
            ),
            logits_rows,
        )
