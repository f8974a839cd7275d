from pellucid.scheduling.block_pool import BlockPool

A, B = b"a" * 32, b"b" * 32


def test_least_recently_released_is_taken_first() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    pool.release([second, first, third])
    assert [block.block_id for block in pool.allocate(3)] == [1, 0, 2]


def test_a_released_block_is_found_until_it_is_taken() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.seal(block, A, (1, 2))
    pool.release([block])
    assert pool.find(A, (1, 2)) is block
    pool.allocate(2)
    assert pool.find(A, (1, 2)) is None
    pool.check_integrity()


def test_a_hit_is_checked_by_its_tokens() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.seal(block, A, (1, 2))
    assert pool.find(A, (1, 3)) is None


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
    first, second = pool.allocate(2)
    pool.seal(first, B, (7,))
    pool.seal(second, B, (7,))
    assert pool.find(B, (7,)) is first
    pool.release([second])
    pool.check_integrity()
