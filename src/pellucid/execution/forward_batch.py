"""The forward batch: the arrays of a step's requests, as decoders take them."""

from collections.abc import Sequence

import numpy as np

from pellucid.backends.ops import ForwardBatch, IntArray
from pellucid.scheduling.scheduler_output import BlockIds, ScheduledRequest


def build_forward_batch(
    scheduled_requests: Sequence[ScheduledRequest],
    block_tables: Sequence[BlockIds],
    block_size: int,
) -> ForwardBatch:
    """Lays the rows of a step's requests one after the other.

    Args:
        scheduled_requests: at least one request.
        block_tables: of each.
        block_size: tokens per KV block.
    """
    # Lists, and few calls of NumPy: a step leaves nothing but weights in the caches, and each function
    # that is called then costs more than its loop.
    token_ids: list[int] = []
    positions: list[int] = []
    rope_lens: list[int] = []
    slots: list[list[int]] = [[] for _ in block_tables[0]]
    query_start = [0]
    seq_lens: list[int] = []
    logits_indices: list[int] = []
    for scheduled, tables in zip(scheduled_requests, block_tables, strict=True):
        first, start, end = len(token_ids), scheduled.start, scheduled.end
        rows = scheduled.logits_rows
        logits_indices += range(first + rows.start, first + rows.stop)
        token_ids += scheduled.token_ids
        positions += range(start, end)
        num_prompt_tokens = scheduled.num_prompt_tokens
        rope_lens += [max(num_prompt_tokens, length) for length in range(start + 1, end + 1)]
        for group, block_ids in enumerate(tables):
            slots[group] += [
                block_ids[position // block_size] * block_size + position % block_size
                for position in range(start, end)
            ]
        query_start.append(len(token_ids))
        seq_lens.append(end)
    return ForwardBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        rope_lens=np.array(rope_lens, np.int32),
        slot_mapping=np.array(slots, np.int64),
        query_start=np.array(query_start, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_tables=_block_tables(block_tables),
        logits_indices=np.array(logits_indices, np.int32),
        state_slots=np.array([each.state_slot for each in scheduled_requests], np.int32),
    )


def _block_tables(of_requests: Sequence[BlockIds]) -> IntArray:
    """One row for each group and request, filled up with -1: [G, B, blocks of the longest]."""
    num_groups = len(of_requests[0])
    width = max([len(block_ids) for own in of_requests for block_ids in own])
    tables: list[int] = []
    for group in range(num_groups):
        for own in of_requests:
            block_ids = own[group]
            tables += block_ids
            tables += (-1,) * (width - len(block_ids))
    return np.array(tables, np.int32).reshape(num_groups, -1, width)
