"""The NumPy KV cache: keys and values in slots, and blocks moved whole."""

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from support.block_moves import check_block_moves, check_unpacked_blocks, filled_cache
from support.open_keys import check_open_keys, check_shared_layers, check_slots


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
def test_blocks_move_whole(dtype):
    check_block_moves(NumpyBackend(), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
def test_a_block_is_read_as_its_format_says(dtype):
    check_unpacked_blocks(NumpyBackend(), dtype)


def test_a_block_of_another_size_is_refused():
    cache = filled_cache(NumpyBackend(), "bf16", 0)
    with pytest.raises(ValueError, match=f"data: has 7 bytes, a block {cache.bytes_per_block}"):
        cache.write_blocks([0], [np.zeros(7, np.uint8)])


def test_open_keys_are_those_of_the_latest_groups():
    check_open_keys(NumpyBackend(), NumpyBackend())
    check_slots(NumpyBackend())
    check_shared_layers(NumpyBackend())
