"""Hashes of all blocks of a text in one native call, beside those that the prefix index makes one by one."""

import random

import pytest

from pellucid.backends.native import hash_blocks
from pellucid.cluster.block_labels import label, prompt_labels
from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.block_tables import hash_of_block, hashed_bytes, root_hash


def chain(parent: bytes, token_ids: list[int], block_size: int) -> list[bytes]:
    hashes = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hash_of_block(parent, hashed_bytes(token_ids[end - block_size : end]))
        hashes.append(parent)
    return hashes


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 16, 32, 33, 128])
def test_hashes_are_those_of_the_prefix_index(block_size: int) -> None:
    rng = random.Random(block_size)
    for num_tokens in (0, block_size - 1, block_size, 2 * block_size + 1, 9 * block_size):
        token_ids = [rng.randrange(-(2**63), 2**63) for _ in range(num_tokens)]
        parent = rng.randbytes(32)
        expected = chain(parent, token_ids, block_size)
        assert hash_blocks(parent, token_ids, block_size) == b"".join(expected)
        assert hash_blocks(parent, tuple(token_ids), block_size) == b"".join(expected)
        labels = [*map(label, chain(root_hash(CacheSalt("a"), 0), token_ids, block_size))]
        findable = labels[: max(0, num_tokens - 1) // block_size]
        assert prompt_labels(token_ids, block_size, CacheSalt("a")) == findable


def test_what_is_no_text_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="parent_hash: has 3 bytes, and must have 32"):
        hash_blocks(b"abc", [1], 1)
    with pytest.raises(ValueError, match="block_size=0: must be at least 1"):
        hash_blocks(bytes(32), [1], 0)
    with pytest.raises(TypeError, match="token_ids: must be a list or a tuple"):
        hash_blocks(bytes(32), "abc", 1)
    with pytest.raises(OverflowError):
        hash_blocks(bytes(32), [2**63], 1)
    with pytest.raises(TypeError):
        hash_blocks(bytes(32), ["a"], 1)
