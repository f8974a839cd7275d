"""Turns a scheduled step into the arrays that a decoder takes."""

from collections.abc import Sequence

import numpy as np

from pellucid.backends.base import ForwardBatch
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
    q_lens = [share.num_scheduled_tokens for share in scheduled]
    query_start = np.concatenate(([0], np.cumsum(q_lens))).astype(np.int32)
    positions = [np.arange(share.start, share.end, dtype=np.int32) for share in scheduled]
    widest = max(len(share.block_ids) for share in scheduled)
    block_tables = np.full((len(scheduled), widest), -1, dtype=np.int32)
    for row, share in zip(block_tables, scheduled, strict=True):
        row[: len(share.block_ids)] = share.block_ids

    token_ids = [
        token_id
        for share in scheduled
        for token_id in share.request.token_ids(share.start, share.end)
    ]
    rope_lens = [
        np.maximum(share.request.num_prompt_tokens, own + 1)
        for share, own in zip(scheduled, positions, strict=True)
    ]
    slot_mapping = [
        row[own // block_size].astype(np.int64) * block_size + own % block_size
        for row, own in zip(block_tables, positions, strict=True)
    ]
    logits_indices = [
        start + row
        for start, share in zip(query_start[:-1], scheduled, strict=True)
        for row in logits_rows(share)
    ]
    return ForwardBatch(
        token_ids=np.array(token_ids, dtype=np.int32),
        positions=np.concatenate(positions),
        rope_lens=np.concatenate(rope_lens).astype(np.int32),
        slot_mapping=np.concatenate(slot_mapping),
        query_start=query_start,
        seq_lens=np.array([share.end for share in scheduled], dtype=np.int32),
        block_tables=block_tables,
        logits_indices=np.array(logits_indices, dtype=np.int32),
    )
