"""The native KV cache: reading, writing and copying whole blocks."""

import pytest

from pellucid.backends.cpu.backend import CpuBackend
from support.block_moves import (
    NUM_BLOCKS,
    check_block_moves,
    check_layers_of_several_shapes,
    check_unpacked_blocks,
    filled_cache,
)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
def test_blocks_move_whole(dtype):
    check_block_moves(CpuBackend(), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
def test_a_block_is_read_as_its_format_says(dtype):
    check_unpacked_blocks(CpuBackend(), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
def test_layers_of_several_shapes_do_not_touch_each_other(dtype):
    check_layers_of_several_shapes(CpuBackend(), dtype)


def test_nothing_outside_the_cache_is_touched():
    cache = filled_cache(CpuBackend(), "bf16", 0)
    (data,) = cache.read_blocks([0])
    for block_id in (-1, NUM_BLOCKS):
        refused = pytest.raises(ValueError, match=f"block_id={block_id}: is not in the cache")
        with refused:
            cache.copy_blocks([block_id], [0])
        with refused:
            cache.copy_blocks([0], [block_id])
        with refused:
            cache.read_blocks([block_id])
        with refused:
            cache.write_blocks([block_id], [data])
    with pytest.raises(ValueError, match=rf"data: has {len(data) - 1} bytes, a block {len(data)}"):
        cache.write_blocks([0], [data[:-1]])
    assert (cache.read_blocks([0])[0] == data).all()
    with pytest.raises(ValueError, match="target_id: must not be source_id"):
        cache.copy_blocks([1], [1])
