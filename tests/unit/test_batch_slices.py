"""Slices of a step equal the steps of a scheduler with a smaller budget."""

import dataclasses

import numpy as np
import pytest

from pellucid.backends.cpu.batch_slices import slices
from support.batches import Share, forward_batch

BLOCK_SIZE = 16


def share(start, stop, first_block):
    num_blocks = -(-stop // BLOCK_SIZE)
    return Share(range(stop), start, stop, range(first_block, first_block + num_blocks), 5)


def assert_equal(actual, expected):
    for field in dataclasses.fields(expected):
        if field.name != "block_tables":
            mine, wanted = getattr(actual, field.name), getattr(expected, field.name)
            if wanted is None:
                assert mine is None, field.name
            else:
                assert mine.tolist() == wanted.tolist(), field.name
    for mine, wanted, seq_len in zip(
        actual.block_tables[0], expected.block_tables[0], expected.seq_lens, strict=True
    ):
        num_blocks = -(-seq_len // BLOCK_SIZE)
        assert mine[:num_blocks].tolist() == wanted[:num_blocks].tolist()


def test_a_small_step_is_its_own_slice():
    batch = forward_batch([share(3, 9, 0), share(20, 21, 4)], BLOCK_SIZE, [5, 6])
    (only,) = slices(batch, 7)
    assert_equal(only.batch, batch)
    assert only.logits_rows.tolist() == [0, 1]


def test_a_request_is_cut_where_the_rows_end():
    batch = forward_batch(
        [share(2, 4, 0), share(0, 40, 2), share(7, 8, 6)], BLOCK_SIZE, [1, 41, 42]
    )
    first, second, third = slices(batch, 20)
    assert_equal(first.batch, forward_batch([share(2, 4, 0), share(0, 18, 2)], BLOCK_SIZE, [1]))
    assert_equal(second.batch, forward_batch([share(18, 38, 2)], BLOCK_SIZE, []))
    assert_equal(third.batch, forward_batch([share(38, 40, 2), share(7, 8, 6)], BLOCK_SIZE, [1, 2]))
    assert [part.logits_rows.tolist() for part in (first, second, third)] == [[0], [], [1, 2]]


@pytest.mark.parametrize("max_rows", [1, 2, 5, 11, 100])
def test_every_row_is_in_one_slice(max_rows):
    shares = [share(0, 9, 0), share(30, 31, 1), share(5, 17, 4)]
    batch = forward_batch(shares, BLOCK_SIZE, [21, 0, 9])  # in no order
    parts = list(slices(batch, max_rows))
    assert max(len(part.batch.token_ids) for part in parts) <= max_rows
    assert np.concatenate([part.batch.slot_mapping for part in parts], axis=1).tolist() == (
        batch.slot_mapping.tolist()
    )
    assert sorted(np.concatenate([part.logits_rows for part in parts])) == [0, 1, 2]
    for part in parts:
        rows = part.batch
        q_lens = np.diff(rows.query_start)
        assert (q_lens >= 1).all()
        last_positions = rows.positions[rows.query_start[1:] - 1]
        assert (last_positions + 1 == rows.seq_lens).all()
