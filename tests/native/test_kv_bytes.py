"""The bytes of a block of the KV cache, by the formula of estimates, are those that the native cache allocates."""

import pytest

from pellucid.backends.cpu_backend import CpuBackend
from pellucid.benchmark.estimate import NUMBER_BYTES, kv_block_bytes
from pellucid.shapes import SHAPES, find_shape


@pytest.mark.parametrize("dtype", NUMBER_BYTES)
def test_bytes_of_a_block(dtype: str) -> None:
    backend = CpuBackend()
    for shape in map(find_shape, SHAPES):
        for block_size in (16, 128):
            allocated = backend.kv_bytes_per_block(shape, block_size, dtype)
            assert kv_block_bytes(shape, dtype, block_size) == allocated
