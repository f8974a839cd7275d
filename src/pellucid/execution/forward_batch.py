"""Turns a scheduled step into the arrays that a decoder takes."""

from collections.abc import Sequence

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
    prompt, sampled = prompt_logprob_rows(share), share.sampled_rows
    if not prompt or not sampled:
        return prompt or sampled
    return range(prompt.start, sampled.stop)  # they meet: there are drafts after the prompt only


def build_forward_batch(scheduled: Sequence[ScheduledRequest], block_size: int) -> ForwardBatch:
    """Lays the shares of a step one after the other.

    Args:
        scheduled: at least one share.
        block_size: tokens per KV block.
    """
    # Lists, and few calls of NumPy: a step leaves nothing but weights in the caches, and each function
    # that is called then costs more than its loop.
    token_ids: list[int] = []
    positions: list[int] = []
    rope_lens: list[int] = []
    slots: list[int] = []
    query_start = [0]
    seq_lens: list[int] = []
    logits_indices: list[int] = []
    for share in scheduled:
        first, start, end = len(token_ids), share.start, share.end
        rows = logits_rows(share)
        logits_indices += range(first + rows.start, first + rows.stop)
        token_ids += share.request.token_ids(start, end)
        positions += range(start, end)
        num_prompt_tokens = share.request.num_prompt_tokens
        rope_lens += [max(num_prompt_tokens, length) for length in range(start + 1, end + 1)]
        slots += [
            share.block_ids[position // block_size] * block_size + position % block_size
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
        block_tables=_block_tables([share.block_ids for share in scheduled]),
        logits_indices=np.array(logits_indices, np.int32),
    )


def _block_tables(block_ids: Sequence[Sequence[int]]) -> IntArray:
    """One row for each share, filled up with -1."""
    width = max(map(len, block_ids))
    tables: list[int] = []
    for own in block_ids:
        tables += own
        tables += (-1,) * (width - len(own))
    return np.array(tables, np.int32).reshape(-1, width)
