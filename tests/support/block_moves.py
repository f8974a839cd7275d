"""Tests of reading, writing and copying blocks of a KV cache, shared by all backends."""

from dataclasses import replace

import numpy as np

from pellucid.backends.base import Backend
from pellucid.backends.numpy.kv_cache import rows_of_format
from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.facts.kv_groups import kv_groups, kv_places
from pellucid.facts.model_config import ModelConfig
from support.batches import Share, forward_batch
from support.tiny_shape import TINY_SHAPE

BLOCK_SIZE, NUM_BLOCKS = 32, 4
SHAPE = replace(TINY_SHAPE, layers=TINY_SHAPE.layers[:1] * 2)  # one group
HEADS = SHAPE.layers[0].attention


def model_of_kinds(*kinds: tuple[int | None, int]) -> ModelConfig:
    """A model with a layer for each (window, head dim)."""
    layer = TINY_SHAPE.layers[0]
    layers = tuple(
        replace(
            layer, attention=replace(layer.attention, window=window, head_dim=head_dim, rope=None)
        )
        for window, head_dim in kinds
    )
    return replace(TINY_SHAPE, layers=layers)


# Three groups: of three wide layers, and twice of six narrow ones.
WIDE_AND_NARROW = model_of_kinds(*([(16, 8)] * 4 + [(None, 16)]) * 3)


def check_block_moves(backend: Backend, dtype: str) -> None:
    """Copies within a cache and moves to another one: the same bits, and nothing else touched."""
    cache, other = filled_cache(backend, dtype, 0), filled_cache(backend, dtype, 1)
    expected = backend.kv_bytes_per_block(SHAPE, BLOCK_SIZE, dtype)
    assert cache.bytes_per_block == expected
    open_bytes = NUM_BLOCKS * cache.bytes_per_state + backend.open_area_bytes(SHAPE, dtype)
    assert cache.num_bytes == NUM_BLOCKS * expected + open_bytes

    attended = attend(backend, cache, 2)
    blocks = contents(cache)
    cache.copy_blocks([2], [0])
    assert same(contents(cache), [blocks[2], blocks[1], blocks[2], blocks[3]])
    assert (attend(backend, cache, 0) == attended).all()

    blocks, (data,) = contents(other), cache.read_blocks([2])
    data.flags.writeable = False
    other.write_blocks([3], [data])
    assert same(contents(other), [*blocks[:3], data])
    assert (attend(backend, other, 3) == attended).all()


def check_unpacked_blocks(backend: Backend, dtype: str) -> None:
    """Keys and values come out of a block's bytes as the definition of the format rounds them."""
    cache = filled_cache(backend, dtype, 3)
    rng = np.random.default_rng(3)
    slots = np.arange(NUM_BLOCKS * BLOCK_SIZE)
    shape = (len(slots), HEADS.num_kv_heads, HEADS.head_dim)
    for layer in range(SHAPE.num_layers):
        both = []
        halves = rng.standard_normal((2, *shape)).astype(np.float32)
        for numbers, make_rows in zip(halves, rows_of_format(dtype, np.float32), strict=True):
            rows = make_rows(*shape)
            rows.write(slots, numbers)
            both.append(rows.read(slots).astype(np.float32))
        for block_id in (0, NUM_BLOCKS - 1):
            unpacked = cache.unpack_block(contents(cache)[block_id], layer)
            own = slice(block_id * BLOCK_SIZE, (block_id + 1) * BLOCK_SIZE)
            for found, expected in zip(unpacked, both, strict=True):
                assert found.dtype == np.float32
                assert (found == expected[own]).all()


def check_layers_of_several_shapes(backend: Backend, dtype: str) -> None:
    """Layers of different shapes keep what they are given, whatever the others of their block are given."""
    config, size = WIDE_AND_NARROW, BLOCK_SIZE
    cache = backend.make_kv_cache(config, 6, size, dtype)
    rng = np.random.default_rng(0)
    places, expected = kv_places(config, kv_groups(config)), {}
    for index, layer in enumerate(config.layers):
        shape = (size, layer.attention.num_kv_heads, layer.attention.head_dim)
        halves = rng.standard_normal((2, *shape)).astype(np.float32)
        batch = forward_batch(
            [Share([0] * size, 0, size, [0])], size, num_groups=3
        )  # block g for group g
        backend.ops.store_kv(cache.layers[index], *halves, batch)
        expected[index] = []
        for numbers, make_rows in zip(halves, rows_of_format(dtype, np.float32), strict=True):
            rows = make_rows(*shape)
            rows.write(np.arange(size), numbers)
            expected[index].append(rows.read(np.arange(size)).astype(np.float32))
    for index, place in enumerate(places):
        found = cache.unpack_block(cache.read_blocks([place.group])[0], index)
        for own, wanted in zip(found, expected[index], strict=True):
            assert (own == wanted).all()


def filled_cache(backend: Backend, dtype: str, seed: int) -> KVCache:
    """A cache with random keys and values in every slot."""
    rng = np.random.default_rng(seed)
    cache = backend.make_kv_cache(SHAPE, NUM_BLOCKS, BLOCK_SIZE, dtype, NUM_BLOCKS)
    shares = [
        Share([0] * BLOCK_SIZE, 0, BLOCK_SIZE, [block], state_slot=block)
        for block in range(NUM_BLOCKS)
    ]
    for layer in cache.layers:
        shape = (NUM_BLOCKS * BLOCK_SIZE, HEADS.num_kv_heads, HEADS.head_dim)
        k, v = rng.standard_normal((2, *shape)).astype(np.float32)
        backend.ops.store_kv(layer, k, v, forward_batch(shares, BLOCK_SIZE))
    return cache


def contents(cache: KVCache) -> list[BlockBytes]:
    return cache.read_blocks(range(NUM_BLOCKS))


def same(blocks: list[BlockBytes], expected: list[BlockBytes]) -> bool:
    return all((a == b).all() for a, b in zip(blocks, expected, strict=True))


def attend(backend: Backend, cache: KVCache, block_id: int) -> HostArray:
    """What the first token after the block, stored in block 1, gets from it in all layers one after the other."""
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, HEADS.num_heads, HEADS.head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, HEADS.num_kv_heads, HEADS.head_dim)).astype(np.float32)
    share = Share([0] * (BLOCK_SIZE + 1), BLOCK_SIZE, BLOCK_SIZE + 1, [block_id, 1])
    batch, rows = forward_batch([share], BLOCK_SIZE), []
    for layer in cache.layers:
        backend.ops.store_kv(layer, k, v, batch)
        rows.append(backend.ops.paged_attention(q, layer, batch, 1.0))
    return np.concatenate(rows)
