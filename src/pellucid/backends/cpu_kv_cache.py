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
        index: of the layer.
        num_kv_heads: K.
        max_seq_len: positions that a sequence in it can have.
    """

    index: int
    num_kv_heads: int
    max_seq_len: int
    cache: "CpuKVCache | None" = None


class CpuKVCache:
    """All layers' keys and values; made by `CpuBackend.make_kv_cache`."""

    def __init__(self, cache: native.KVCache, num_layers: int, dtype: str) -> None:
        self.native = cache
        self._dtype = dtype
        max_seq_len = cache.num_blocks * cache.block_size
        self.layers: Sequence[CpuKVLayer] = [
            CpuKVLayer(index, cache.num_kv_heads, max_seq_len, self) for index in range(num_layers)
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
        layer_bytes = self.bytes_per_block // len(self.layers)
        own = data[layer * layer_bytes :][:layer_bytes]
        k, v = unpack_layer(own, self._dtype, self.native.num_kv_heads, self.native.head_dim)
        return k, v


class TracedKVCache:
    """What a traced forward takes for its cache: handles without memory behind them."""

    def __init__(self, config: ModelConfig) -> None:
        self.layers: Sequence[CpuKVLayer] = [
            CpuKVLayer(index, config.num_kv_heads, config.context_length)
            for index in range(config.num_layers)
        ]


def make_cpu_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str
) -> CpuKVCache:
    """A cache of zeros for all layers of `config`.

    Raises:
        ValueError: there is no such `dtype`, or the kernels cannot work with the model's shape.
    """
    cache = native.KVCache(
        dtype, config.num_layers, config.num_kv_heads, config.head_dim, block_size, num_blocks
    )
    return CpuKVCache(cache, config.num_layers, dtype)
