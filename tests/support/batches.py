"""Forward batches without a scheduler, for tests of ops and decoders."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends.ops import ForwardBatch


@dataclass(frozen=True)
class Share:
    """What one request contributes to a step: its tokens start .. stop - 1."""

    token_ids: Sequence[int]  # of the whole request, as far as known
    start: int
    stop: int
    block_ids: Sequence[int]  # enough for `stop` tokens, in one group
    num_prompt_tokens: int | None = None  # None: all token_ids are the prompt
    state_slot: int = 0


def scattered_block_tables(lengths: Sequence[int], block_size: int) -> list[list[int]]:
    """Blocks for each of these lengths, in no order."""
    num_blocks = [-(-length // block_size) for length in lengths]
    block_ids = np.random.default_rng(7).permutation(sum(num_blocks))
    return [own.tolist() for own in np.split(block_ids, np.cumsum(num_blocks)[:-1])]


def forward_batch(
    shares: Sequence[Share],
    block_size: int,
    logits_indices: Sequence[int] | None = None,
    num_groups: int = 1,
) -> ForwardBatch:
    """The arrays of one step.

    Args:
        shares: one per request, none empty.
        block_size: tokens per block.
        logits_indices: rows whose logits are wanted; None wants all of them.
        num_groups: of layers; group g has block id * num_groups + g for a share's block id.
    """
    positions = [np.arange(share.start, share.stop) for share in shares]
    prompt_lens = [
        len(share.token_ids) if share.num_prompt_tokens is None else share.num_prompt_tokens
        for share in shares
    ]
    tables = np.full((len(shares), max(len(share.block_ids) for share in shares)), -1)
    for table, share in zip(tables, shares, strict=True):
        table[: len(share.block_ids)] = share.block_ids
    group_tables = np.array(
        [np.where(tables < 0, -1, tables * num_groups + g) for g in range(num_groups)]
    )
    query_start = np.cumsum([0] + [len(own) for own in positions])
    return ForwardBatch(
        token_ids=np.concatenate(
            [np.array(share.token_ids[share.start : share.stop]) for share in shares]
        ),
        positions=np.concatenate(positions),
        rope_lens=np.concatenate(
            [
                np.maximum(length, own + 1)
                for length, own in zip(prompt_lens, positions, strict=True)
            ]
        ),
        slot_mapping=np.concatenate(
            [
                group_tables[:, request, own // block_size] * block_size + own % block_size
                for request, own in enumerate(positions)
            ],
            axis=1,
        ),
        query_start=query_start,
        seq_lens=np.array([share.stop for share in shares]),
        block_tables=group_tables,
        logits_indices=np.arange(query_start[-1])
        if logits_indices is None
        else np.array(logits_indices, int),
        state_slots=np.array([share.state_slot for share in shares]),
    )
