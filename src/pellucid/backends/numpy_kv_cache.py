"""Keys and values in NumPy arrays: one row per slot."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Array, BlockBytes, IntArray
from pellucid.config import ModelConfig


def storage_dtype(dtype: str, compute_dtype: npt.DTypeLike) -> np.dtype[Any]:
    """What one number is stored as. "f32" is the compute precision, so f64 where that is f64.

    Raises:
        ValueError: this backend has no such format.
    """
    formats: dict[str, np.dtype[Any]] = {
        "f32": np.dtype(compute_dtype),
        "bf16": np.dtype(ml_dtypes.bfloat16),
    }
    if dtype not in formats:
        allowed = ", ".join(map(repr, formats))
        raise ValueError(f"kv_cache_dtype={dtype!r}: the numpy backend allows {allowed}")
    return formats[dtype]


@dataclass(frozen=True)
class NumpyKVLayer:
    """One layer's keys and values, [num_blocks * block_size, K, D], indexed by slot."""

    k: Array
    v: Array
    block_size: int

    def write(self, k: Array, v: Array, slot_mapping: IntArray) -> None:
        """Rounds k, v [T, K, D] to the format and puts row t into slot_mapping[t]."""
        self.k[slot_mapping] = k
        self.v[slot_mapping] = v

    def read(
        self, block_table: IntArray, start: int, stop: int, seq_len: int, dtype: npt.DTypeLike
    ) -> tuple[Array, Array]:
        """K and V [stop - start, K, D] of positions start .. stop - 1, zeros from seq_len on."""
        positions = np.arange(start, min(stop, seq_len))
        block, offset = np.divmod(positions, self.block_size)
        slots = block_table[block] * self.block_size + offset
        k, v = (np.zeros((stop - start, *self.k.shape[1:]), dtype) for _ in range(2))
        k[: len(slots)] = self.k[slots]
        v[: len(slots)] = self.v[slots]
        return k, v


@dataclass(frozen=True)
class NumpyKVCache:
    """All layers' keys and values; made by `NumpyBackend.make_kv_cache`."""

    layers: tuple[NumpyKVLayer, ...]
    bytes_per_block: int  # of all layers

    @property
    def num_bytes(self) -> int:
        return sum(layer.k.nbytes + layer.v.nbytes for layer in self.layers)

    def copy_block(self, source_id: int, target_id: int) -> None:
        for source, target in zip(self._parts(source_id), self._parts(target_id), strict=True):
            target[:] = source

    def read_block(self, block_id: int) -> BlockBytes:
        return np.concatenate(self._parts(block_id))

    def write_block(self, block_id: int, data: BlockBytes) -> None:
        if data.shape != (self.bytes_per_block,):
            raise ValueError(f"data: has {data.size} bytes, a block {self.bytes_per_block}")
        parts = self._parts(block_id)
        for part, own in zip(parts, np.split(data, len(parts)), strict=True):
            part[:] = own

    def _parts(self, block_id: int) -> list[BlockBytes]:
        """Views of a block's memory, all of the same size: K and V of each layer."""
        return [
            array[block_id * layer.block_size :][: layer.block_size].reshape(-1).view(np.uint8)
            for layer in self.layers
            for array in (layer.k, layer.v)
        ]


def make_numpy_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: np.dtype[Any]
) -> NumpyKVCache:
    """A cache of zeros for all layers of `config`, numbers stored as `dtype`."""
    shape = (num_blocks * block_size, config.num_kv_heads, config.head_dim)
    layers = tuple(
        NumpyKVLayer(np.zeros(shape, dtype), np.zeros(shape, dtype), block_size)
        for _ in range(config.num_layers)
    )
    return NumpyKVCache(layers, numpy_kv_bytes_per_block(config, block_size, dtype))


def numpy_kv_bytes_per_block(config: ModelConfig, block_size: int, dtype: np.dtype[Any]) -> int:
    """Bytes of one block in all layers, K and V."""
    numbers_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return block_size * numbers_per_token * dtype.itemsize
