"""Turns a scheduled step into the arrays that a decoder takes."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from pellucid.backends.base import ForwardBatch, IntArray
from pellucid.scheduling.scheduler_output import ScheduledRequest


def prompt_logprob_rows(share: ScheduledRequest) -> range:
    """The rows of a share, counted from its first, whose prompt log-probabilities are to be given.

    Each position's are given once: not again by a row that is computed again.
    """
    request = share.request
    if request.params.prompt_logprobs is None or request.output_token_ids:
        return range(0)
    last = min(share.end, request.num_prompt_tokens - 1)  # the next position is a prompt token's
    return range(share.num_recomputed_tokens, max(share.num_recomputed_tokens, last - share.start))


def logits_rows(share: ScheduledRequest) -> range:
    """The rows of a share, counted from its first, whose logits are needed."""
    prompt = prompt_logprob_rows(share)
    last = share.num_scheduled_tokens - 1
    if not share.samplers:
        return prompt
    return range(prompt.start if prompt else last, last + 1)


def build_forward_batch(scheduled: Sequence[ScheduledRequest], block_size: int) -> ForwardBatch:
    """Lays the shares of a step one after the other.

    Args:
        scheduled: at least one share.
        block_size: tokens per KV block.
    """
    num_rows = np.array([share.num_scheduled_tokens for share in scheduled])
    starts = np.array([share.start for share in scheduled])
    num_prompt_tokens = np.array([share.request.num_prompt_tokens for share in scheduled])
    query_start = np.concatenate(([0], np.cumsum(num_rows)))
    owners = np.repeat(np.arange(len(scheduled)), num_rows)  # [T] index of the share
    positions = np.arange(query_start[-1]) + (starts - query_start[:-1])[owners]
    block_tables = _block_tables([share.block_ids for share in scheduled])
    block_ids = block_tables[owners, positions // block_size].astype(np.int64)

    token_ids: list[int] = []
    logits_indices: list[int] = []
    for share in scheduled:
        rows = logits_rows(share)
        logits_indices += range(len(token_ids) + rows.start, len(token_ids) + rows.stop)
        token_ids += share.request.token_ids(share.start, share.end)
    return ForwardBatch(
        token_ids=np.array(token_ids, dtype=np.int32),
        positions=positions.astype(np.int32),
        rope_lens=np.maximum(num_prompt_tokens[owners], positions + 1).astype(np.int32),
        slot_mapping=block_ids * block_size + positions % block_size,
        query_start=query_start.astype(np.int32),
        seq_lens=(starts + num_rows).astype(np.int32),
        block_tables=block_tables,
        logits_indices=np.array(logits_indices, dtype=np.int32),
    )


def _block_tables(block_ids: Sequence[Sequence[int]]) -> IntArray:
    """One row for each share, filled up with -1."""
    lengths = np.array([len(own) for own in block_ids])
    tables = np.full((len(block_ids), lengths.max()), -1, dtype=np.int32)
    all_ids = np.fromiter(chain.from_iterable(block_ids), dtype=np.int32, count=lengths.sum())
    tables[np.arange(tables.shape[1]) < lengths[:, None]] = all_ids
    return tables
