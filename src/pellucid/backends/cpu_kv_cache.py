"""The native KV cache, and its handles that models pass to ops."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends import native
from pellucid.backends.cpu_kv_layout import unpack_layer
from pellucid.backends.ops import Array, BlockBytes
from pellucid.config import ModelConfig


@dataclass(frozen=True)
class CpuKVLayer:
    """One layer of a cache; `cache` is None while a forward is traced, for whatever cache will be given.

    Args:
        index: among the layers that have keys and values of their own.
        num_kv_heads: K.
        max_seq_len: positions that a sequence in it can have.
    """

    index: int
    num_kv_heads: int
    max_seq_len: int
    cache: "CpuKVCache | None" = None


class CpuKVCache:
    """All layers' keys and values; made by `CpuBackend.make_kv_cache`."""

    def __init__(self, cache: native.KVCache, config: ModelConfig, dtype: str) -> None:
        self.native = cache
        self._dtype = dtype
        max_seq_len = cache.num_blocks * cache.block_size
        self.layers: Sequence[CpuKVLayer] = [
            CpuKVLayer(index, cache.num_kv_heads, max_seq_len, self) for index in _indices(config)
        ]

    @property
    def num_bytes(self) -> int:
        return self.native.num_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.native.bytes_per_block

    def copy_block(self, source_id: int, target_id: int) -> None:
        self.native.copy_block(source_id, target_id)

    def read_block(self, block_id: int) -> BlockBytes:
        data = np.empty(self.bytes_per_block, np.uint8)
        self.native.read_block(block_id, data)
        return data

    def write_block(self, block_id: int, data: BlockBytes) -> None:
        self.native.write_block(block_id, data)

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[Array, Array]:
        num_own = 1 + max(each.index for each in self.layers)
        layer_bytes = self.bytes_per_block // num_own
        own = data[self.layers[layer].index * layer_bytes :][:layer_bytes]
        k, v = unpack_layer(own, self._dtype, self.native.num_kv_heads, self.native.head_dim)
        return k, v


class TracedKVCache:
    """What a traced forward takes for its cache: handles without memory behind them."""

    def __init__(self, config: ModelConfig) -> None:
        self.layers: Sequence[CpuKVLayer] = [
            CpuKVLayer(index, layer.attention.num_kv_heads, config.context_length)
            for index, layer in zip(_indices(config), config.layers, strict=True)
        ]


def native_kv_shape(config: ModelConfig) -> tuple[int, int, int]:
    """Layers with keys and values of their own, K and D, which the native cache has the same in all.

    Raises:
        ValueError: layers differ.
    """
    own = [layer.attention for layer in config.layers if layer.attention.shared_kv_layer is None]
    shapes = list(dict.fromkeys((each.num_kv_heads, each.head_dim) for each in own))
    if len(shapes) > 1:
        raise ValueError(
            f"layers: have kv-heads of different shapes {shapes}; the native KV cache takes one"
        )
    return len(own), *shapes[0]


def _indices(config: ModelConfig) -> list[int]:
    """Of each layer, its place among the layers with keys and values of their own."""
    indices: list[int] = []
    num_own = 0
    for layer in config.layers:
        if layer.attention.shared_kv_layer is not None:
            indices.append(indices[layer.attention.shared_kv_layer])
        else:
            indices.append(num_own)
            num_own += 1
    return indices


def make_cpu_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str
) -> CpuKVCache:
    """A cache of zeros for all layers of `config`.

    Raises:
        ValueError: there is no such `dtype`, or the kernels cannot work with the model's shape.
    """
    cache = native.KVCache(dtype, *native_kv_shape(config), block_size, num_blocks)
    return CpuKVCache(cache, config, dtype)
