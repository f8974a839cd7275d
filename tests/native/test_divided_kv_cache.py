"""A KV cache whose kv-heads ranks have shares of: as one, it reads, writes and copies what a whole one does."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.cpu.ranks import Ranks
from pellucid.backends.native import Exchange
from pellucid.backends.ops import KVCache
from pellucid.stages.divided_kv_cache import DividedKVCache
from pellucid.stages.messages import FromStage, ToStage
from pellucid.stages.part_host import OwnSettings, PartHost, _Cache
from support.block_moves import BLOCK_SIZE, NUM_BLOCKS, SHAPE, contents, filled_cache

NUM_RANKS = 2


class Link:
    """To a rank in this process that has a KV cache."""

    def __init__(self, cache: KVCache) -> None:
        self._host = PartHost(OwnSettings())
        self._host._caches[0] = _Cache(cache, NUM_BLOCKS, NUM_BLOCKS, BLOCK_SIZE)

    def ask(self, message: ToStage) -> "Future[FromStage]":
        reply: Future[FromStage] = Future()
        reply.set_result(self._host.answer(message))
        return reply


def rank(number: int) -> CpuBackend:
    """One that stores keys and values, and exchanges nothing."""
    exchange = Exchange(number, NUM_RANKS, gather=1, test=1, communicator=0, number_type=0)
    return CpuBackend(ranks=Ranks(None, exchange, NUM_RANKS, True))


def divided_cache(dtype: str, seed: int) -> DividedKVCache:
    """As `filled_cache`."""
    own, *others = (filled_cache(rank(number), dtype, seed) for number in range(NUM_RANKS))
    layout = rank(0).make_kv_cache(SHAPE, 1, BLOCK_SIZE, dtype)
    links: list[Any] = [Link(other) for other in others]
    return DividedKVCache(links, 0, layout, own)


def unpacked(cache: KVCache) -> list[list[Any]]:
    """Keys and values of all blocks and layers."""
    layers = range(SHAPE.num_layers)
    return [
        [half.tolist() for layer in layers for half in cache.unpack_block(data, layer)]
        for data in contents(cache)
    ]


def open_keys(cache: KVCache, slot: int) -> list[Any]:
    return [cache.read_open_keys(slot, layer, 0).tolist() for layer in range(SHAPE.num_layers)]


@pytest.mark.parametrize("dtype", ["bf16", "int8,int4", "int4"])
def test_shares_are_together_a_whole(dtype: str) -> None:
    whole, divided = filled_cache(CpuBackend(), dtype, 0), divided_cache(dtype, 0)
    assert (
        divided.bytes_per_block == whole.bytes_per_block == NUM_RANKS * divided.own.bytes_per_block
    )
    assert divided.bytes_per_state == whole.bytes_per_state
    assert unpacked(divided) == unpacked(whole)
    other, other_whole = divided_cache(dtype, 1), filled_cache(CpuBackend(), dtype, 1)
    for source, target in ((divided, other), (whole, other_whole)):
        target.copy_blocks([1], [0])
        target.write_blocks([3, 1], source.read_blocks([2, 0]))
    assert unpacked(other) == unpacked(other_whole)
    assert all(
        (a == b).all() for a, b in zip(contents(divided)[2:3], contents(other)[3:], strict=True)
    )
    if divided.bytes_per_state:
        assert open_keys(divided, 2) == open_keys(whole, 2)
        for source, target in ((divided, other), (whole, other_whole)):
            target.write_state(1, np.array(source.read_state(3)))
            target.copy_state(1, 0)
        assert open_keys(other, 0) == open_keys(other_whole, 0) == open_keys(whole, 3)
