"""BlockPool and PrefixIndex: owners of blocks, the order of eviction, and reasons of misses."""

from dataclasses import replace

from pellucid.scheduling.block import NO_SALT, Block, BlockKey
from pellucid.scheduling.block_pool import BlockPool


def key(*token_ids: int, index: int = 0, parent: bytes = b"") -> BlockKey:
    return BlockKey(parent + bytes(token_ids), parent, index, token_ids, 0, "", NO_SALT)


def sealed(pool: BlockPool, *keys: BlockKey) -> list[Block]:
    blocks = pool.allocate(len(keys))
    for block, block_key in zip(blocks, keys, strict=True):
        assert pool.seal(block, block_key, "a")
    return blocks


def test_what_is_taken_first() -> None:
    """What cannot be found again, what was never taken, and then what was released longest ago."""
    pool = BlockPool(5)
    first, second = sealed(pool, key(1), key(2))
    pool.release([*pool.allocate(1), second, first])
    assert pool.num_cached_blocks == 2 and pool.num_free_blocks == 5
    pool.check_integrity()
    assert [block.block_id for block in pool.allocate(4)] == [2, 3, 4, second.block_id]
    assert pool.index.find(key(1)) is first and pool.index.find(key(2)) is None
    pool.check_integrity()


def test_a_block_that_was_never_taken_is_empty() -> None:
    pool = BlockPool(3)
    (taken,) = pool.allocate(1)
    blocks = [pool.block(block_id) for block_id in range(3)]
    assert [(block.block_id, block.ref_count, block.key) for block in blocks] == [
        *((0, 1, None), (1, 0, None), (2, 0, None))
    ]
    assert blocks[0] is taken


def test_a_hit_is_checked_by_its_tokens() -> None:
    pool = BlockPool(1)
    sealed(pool, key(1, 2))
    same_hash = replace(key(1, 2), token_ids=(1, 3))
    assert pool.index.find(same_hash) is None


def test_a_shared_block_is_free_when_the_last_owner_leaves() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.share(block)
    pool.release([block])
    assert pool.num_free_blocks == 0
    pool.release([block])
    assert pool.num_free_blocks == 1
    pool.share(block)  # a hit on a free block takes it from the free list
    assert pool.num_free_blocks == 0
    pool.check_integrity()


def test_of_two_equal_blocks_the_first_stays_findable() -> None:
    pool = BlockPool(2)
    (first,) = sealed(pool, key(7))
    (second,) = pool.allocate(1)
    assert not pool.seal(second, key(7), "b")
    assert pool.index.find(key(7)) is first
    pool.release([second])
    pool.check_integrity()


def test_when_all_are_unsealed_nothing_is_found() -> None:
    pool = BlockPool(3)
    used, free = sealed(pool, key(1), key(2))
    pool.release([free])
    pool.unseal_all()
    assert pool.num_cached_blocks == 0
    assert pool.index.find(key(1)) is None and pool.index.find(key(2)) is None
    pool.release([used])
    pool.check_integrity()


def test_what_was_evicted_is_remembered_for_four_blocks_of_each_of_the_pool() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    for token_id in range(1, 6):
        assert pool.seal(block, key(token_id), "a")
        pool.unseal(block)
    misses = [pool.index.explain_miss(key(token_id), 0) for token_id in (1, 2, 5)]
    assert [(miss.reason.value, miss.num_evicted_since) for miss in misses] == [
        *(("never_seen", None), ("evicted", 3), ("evicted", 0))
    ]
    pool.check_integrity()
