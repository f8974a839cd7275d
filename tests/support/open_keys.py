"""Tests of keys that become codes a group of positions at a time, shared by all backends."""

from dataclasses import replace

import numpy as np

from pellucid.backends.base import Backend
from pellucid.backends.ops import HostArray, KVCache
from pellucid.facts.model_config import ModelConfig
from support.batches import Share, forward_batch
from support.block_moves import HEADS, SHAPE

BLOCK_SIZE = 64
TABLES = ([3, 0, 5], [4, 1, 2])  # of two requests, whose slots are 2 and 0
SLOTS = (2, 0)
Steps = list[list[tuple[int, int, int]]]  # of each step its (request, start, stop)
STEPS: Steps = [
    [(0, 0, 170), (1, 0, 31)],  # more groups than slots keep
    [(1, 31, 32)],
    [(1, 32, 33), (0, 170, 171)],
    [(0, 171, 192), (1, 33, 150)],
]


def random_keys(seed: int) -> HostArray:
    """Of all positions of both requests, [2, 192, K, D]."""
    shape = 2, 192, HEADS.num_kv_heads, HEADS.head_dim
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cache_after(
    backend: Backend, k: HostArray, steps: Steps = STEPS, config: ModelConfig = SHAPE
) -> KVCache:
    """An int4 cache in whose last layer steps have stored keys, which are values, too."""
    cache = backend.make_kv_cache(config, 6, BLOCK_SIZE, "int4", 3)
    for step in steps:
        store(backend, cache, k, step)
    return cache


def store(backend: Backend, cache: KVCache, k: HostArray, step: list[tuple[int, int, int]]) -> None:
    rows = np.concatenate([k[request, start:stop] for request, start, stop in step])
    shares = [
        Share([0] * stop, start, stop, TABLES[request], state_slot=SLOTS[request])
        for request, start, stop in step
    ]
    backend.ops.store_kv(cache.layers[-1], rows, rows, forward_batch(shares, BLOCK_SIZE))


def stored(cache: KVCache, layer: int = -1) -> list[HostArray]:
    """Keys of the groups that are complete, as blocks have them, and those of the latest group, as slots do."""
    layer %= len(cache.layers)
    found = []
    for request, length in enumerate((192, 150)):
        blocks = cache.read_blocks(TABLES[request])
        keys = np.concatenate([cache.unpack_block(block, layer)[0] for block in blocks])
        found.append(keys[: length // 32 * 32])
        last = (length - 1) // 32
        kept = cache.read_open_keys(SLOTS[request], layer, last)
        found.append(kept[: length - 32 * last])
    return found


def check_open_keys(backend: Backend, definition: Backend) -> None:
    """Steps of any size, and positions stored again after wrong drafts, leave what the definition does."""
    k, wrong = random_keys(0), random_keys(1)
    expected = stored(cache_after(definition, k))
    one_by_one = [[(0, p, p + 1)] for p in range(192)] + [[(1, p, p + 1)] for p in range(150)]
    with_drafts = backend.make_kv_cache(SHAPE, 6, BLOCK_SIZE, "int4", 3)
    for request, length in enumerate((192, 150)):
        for start in range(0, length, 11):
            drafts = [(request, start, min(start + 33, 192))]
            store(backend, with_drafts, wrong, drafts)
            store(backend, with_drafts, k, [(request, start, min(start + 11, length))])
    for cache in (cache_after(backend, k), cache_after(backend, k, one_by_one), with_drafts):
        for found, wanted in zip(stored(cache), expected, strict=True):
            assert (found == wanted).all()


def check_slots(backend: Backend) -> None:
    """A slot moves whole, and into no other."""
    cache = cache_after(backend, random_keys(0))
    before = [cache.read_open_keys(slot, 1, group) for slot in range(3) for group in (4, 5)]
    data = cache.read_state(2)
    assert data.shape == (cache.bytes_per_state,)
    cache.write_state(1, data)
    cache.copy_state(1, 0)
    for slot in range(3):
        for group in (4, 5):
            assert (cache.read_open_keys(slot, 1, group) == before[group]).all()
    assert not cache.read_open_keys(2, 0, 4).any()


def check_shared_layers(backend: Backend) -> None:
    """What a later layer reads of an earlier one's keys is not what layers between them have stored."""
    first, _ = SHAPE.layers
    assert first.attention is not None
    shared = replace(first, attention=replace(first.attention, shared_kv_layer=0))
    config = replace(SHAPE, layers=(*SHAPE.layers, shared))
    cache = backend.make_kv_cache(config, 6, BLOCK_SIZE, "int4", 3)
    batch = forward_batch([Share([0] * 170, 0, 170, TABLES[0], state_slot=1)], BLOCK_SIZE)
    q = np.random.default_rng(2).standard_normal((170, HEADS.num_heads, HEADS.head_dim))
    found = []
    for layer, seed in ((0, 0), (1, 1)):
        rows = random_keys(seed)[0, :170]
        backend.ops.store_kv(cache.layers[layer], rows, rows, batch)
        q = q.astype(np.float32)
        found.append(backend.ops.paged_attention(q, cache.layers[2 * layer], batch, 0.35))
    assert (found[0] == found[1]).all()
