"""Keys of int4 on the native backend: a group of positions becomes codes together."""

from dataclasses import replace

import numpy as np
import pytest

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.numpy.backend import NumpyBackend
from support.batches import Share, forward_batch
from support.block_moves import HEADS, SHAPE
from support.open_keys import (
    cache_after,
    check_open_keys,
    check_shared_layers,
    check_slots,
    random_keys,
    stored,
)


@pytest.mark.parametrize("isa", kernel_levels())
def test_groups_are_stored_as_defined(isa):
    check_open_keys(CpuBackend(isa=isa), NumpyBackend())


def test_slots_move_whole():
    check_slots(CpuBackend())


def test_layers_that_share_keys_read_their_own():
    check_shared_layers(CpuBackend())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"state_slots": np.array([0, 3])}, "state_slots: 3 is not among the 3 slots"),
        ({"state_slots": np.array([1, 1])}, "state_slots: 1 is there twice"),
        ({"slot_mapping": np.array([[0, 1, 40]])}, "slot_mapping: 40 is not for position 0"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(changed, message):
    backend = CpuBackend()
    cache = backend.make_kv_cache(SHAPE, 2, 64, "int4", 3)
    k = np.zeros((3, HEADS.num_kv_heads, HEADS.head_dim), np.float32)
    batch = forward_batch([Share([0] * 2, 0, 2, [0]), Share([0], 0, 1, [1], state_slot=1)], 64)
    with pytest.raises(ValueError, match=message):
        backend.ops.store_kv(cache.layers[0], k, k, replace(batch, **changed))


def test_a_cache_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="block_size=48: must be a multiple of 32"):
        CpuBackend().make_kv_cache(SHAPE, 2, 48, "int4")
    backend = CpuBackend(max_rows=64)
    layer = backend.make_kv_cache(SHAPE, 2, 64, "int4").layers[0]
    k = np.zeros((65, HEADS.num_kv_heads, HEADS.head_dim), np.float32)
    batch = forward_batch([Share([0] * 65, 0, 65, [0, 1])], 64)
    with pytest.raises(ValueError, match="has 65 tokens, the cache's open keys take 64"):
        backend.ops.store_kv(layer, k, k, batch)


@pytest.mark.parametrize("isa", kernel_levels())
def test_keys_at_the_bounds_of_a_scale(isa):
    k = random_keys(2)
    k[0, :32, 0, :4] = 0
    k[0, 5:7, 0, 0] = 3e38, -3e38  # their difference is infinite
    k[0, 5, 0, 1] = np.inf
    k[0, 5, 0, 2], k[0, 5, 0, 3] = 2.0**-100, 2.0**-101  # the least difference that has codes
    steps = [[(0, 0, 192), (1, 0, 150)]]
    own, defined = (cache_after(it, k, steps) for it in (CpuBackend(isa=isa), NumpyBackend()))
    for one, other in zip(stored(own), stored(defined), strict=True):
        np.testing.assert_array_equal(one, other)
