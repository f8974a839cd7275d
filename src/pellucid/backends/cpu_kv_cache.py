"""The native KV cache, and its handles that models pass to ops."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends import native
from pellucid.backends.cpu_kv_layout import unpack_layer
from pellucid.backends.ops import Array, BlockBytes
from pellucid.config import ModelConfig
from pellucid.kv_groups import kv_groups, kv_places


@dataclass(frozen=True)
class CpuKVLayer:
    """One layer of a cache; `cache` is None while a forward is traced, for whatever cache will be given.

    Args:
        group: of the layers with which it shares block tables.
        index: in its group.
        num_kv_heads: K.
        max_seq_len: positions that a sequence in it can have.
    """

    group: int
    index: int
    num_kv_heads: int
    max_seq_len: int
    cache: "CpuKVCache | None" = None


class CpuKVCache:
    """All layers' keys and values; made by `CpuBackend.make_kv_cache`."""

    def __init__(self, cache: native.KVCache, config: ModelConfig, dtype: str) -> None:
        self.native = cache
        self._dtype = dtype
        groups = kv_groups(config)
        max_seq_len = cache.num_blocks * cache.block_size
        if any(group.window is not None for group in groups):  # its blocks behind windows are free
            max_seq_len = max(max_seq_len, config.context_length)
        self.layers: Sequence[CpuKVLayer] = [
            CpuKVLayer(place.group, place.index, cache.num_kv_heads, max_seq_len, self)
            for place in kv_places(config, groups)
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
        layer_bytes = self.bytes_per_block // self.native.num_layers
        own = data[self.layers[layer].index * layer_bytes :][:layer_bytes]
        k, v = unpack_layer(own, self._dtype, self.native.num_kv_heads, self.native.head_dim)
        return k, v


class TracedKVCache:
    """What a traced forward takes for its cache: handles without memory behind them."""

    def __init__(self, config: ModelConfig) -> None:
        places = kv_places(config, kv_groups(config))
        self.layers: Sequence[CpuKVLayer] = [
            CpuKVLayer(
                place.group, place.index, layer.attention.num_kv_heads, config.context_length
            )
            for place, layer in zip(places, config.layers, strict=True)
        ]


def native_kv_shape(config: ModelConfig) -> tuple[int, int, int]:
    """Layers of the largest group, K and D, which the native cache has the same in all.

    Raises:
        ValueError: layers differ.
    """
    own = [layer.attention for layer in config.layers if layer.attention.shared_kv_layer is None]
    shapes = list(dict.fromkeys((each.num_kv_heads, each.head_dim) for each in own))
    if len(shapes) > 1:
        raise ValueError(
            f"layers: have kv-heads of different shapes {shapes}; the native KV cache takes one"
        )
    return max(len(group.layers) for group in kv_groups(config)), *shapes[0]


def make_cpu_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str
) -> CpuKVCache:
    """A cache of zeros for all layers of `config`.

    Raises:
        ValueError: there is no such `dtype`, or the kernels cannot work with the model's shape.
    """
    windows = [group.window or 0 for group in kv_groups(config)]
    cache = native.KVCache(dtype, *native_kv_shape(config), block_size, num_blocks, windows)
    return CpuKVCache(cache, config, dtype)
