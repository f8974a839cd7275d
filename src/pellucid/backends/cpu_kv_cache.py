"""The native KV cache, and its handles that models pass to ops."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends import native
from pellucid.backends.cpu_kv_layout import unpack_layer
from pellucid.backends.ops import Array, BlockBytes
from pellucid.config import ModelConfig, StateShape
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


@dataclass(frozen=True)
class CpuStateLayer:
    """One layer's recurrent states; `cache` is None while a forward is traced.

    Args:
        shape: of the state of one sequence: first the rows of its convolution, then its matrices.
        first: number of a slot's with which the layer's begin.
    """

    shape: StateShape
    first: int
    cache: "CpuKVCache | None" = None


class CpuKVCache:
    """All layers' keys, values and recurrent states; made by `CpuBackend.make_kv_cache`.

    Attributes:
        states: [slots, numbers of all layers] f32; None: no layer has a state.
    """

    def __init__(
        self, cache: native.KVCache, config: ModelConfig, dtype: str, num_state_slots: int
    ) -> None:
        self.native = cache
        self.states = None
        if config.states:  # of a convolution over single rows they have no numbers
            num_numbers = max(1, sum(state.num_numbers for state in config.states))
            self.states = np.zeros((num_state_slots, num_numbers), np.float32)
        self._dtype = dtype
        max_seq_len = cache.num_blocks * cache.block_size
        if any(
            group.window is not None for group in kv_groups(config)
        ):  # its blocks behind windows are free
            max_seq_len = max(max_seq_len, config.context_length)
        self.layers: Sequence[CpuKVLayer | CpuStateLayer] = _layers(config, max_seq_len, self)

    @property
    def num_bytes(self) -> int:
        return self.native.num_bytes + (0 if self.states is None else self.states.nbytes)

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        assert self.states is not None
        self.states[target_slot] = self.states[source_slot]

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
        handle = self.layers[layer]
        assert isinstance(handle, CpuKVLayer)
        own = data[handle.index * layer_bytes :][:layer_bytes]
        k, v = unpack_layer(own, self._dtype, self.native.num_kv_heads, self.native.head_dim)
        return k, v


class TracedKVCache:
    """What a traced forward takes for its cache: handles without memory behind them."""

    def __init__(self, config: ModelConfig) -> None:
        self.layers = _layers(config, config.context_length)


def _layers(
    config: ModelConfig, max_seq_len: int, cache: CpuKVCache | None = None
) -> list[CpuKVLayer | CpuStateLayer]:
    """A handle for each layer; those of layers that share keys and values are equal."""
    handles: list[CpuKVLayer | CpuStateLayer] = []
    num_numbers = 0
    places = kv_places(config, kv_groups(config))
    for layer, place in zip(config.layers, places, strict=True):
        if layer.attention is not None and place is not None:
            num_kv_heads = layer.attention.num_kv_heads
            handles.append(CpuKVLayer(place.group, place.index, num_kv_heads, max_seq_len, cache))
        elif layer.recurrence is not None:
            handles.append(CpuStateLayer(layer.recurrence.state, num_numbers, cache))
            num_numbers += layer.recurrence.state.num_numbers
    return handles


def native_kv_shape(config: ModelConfig) -> tuple[int, int, int]:
    """Layers of the largest group, K and D, which the native cache has the same in all.

    Raises:
        ValueError: layers differ.
    """
    own = [each for each in config.attentions if each.shared_kv_layer is None]
    shapes = list(dict.fromkeys((each.num_kv_heads, each.head_dim) for each in own))
    if len(shapes) > 1:
        raise ValueError(
            f"layers: have kv-heads of different shapes {shapes}; the native KV cache takes one"
        )
    return max(len(group.layers) for group in kv_groups(config)), *shapes[0]


def make_cpu_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str, num_state_slots: int
) -> CpuKVCache:
    """A cache of zeros for all layers of `config`.

    Raises:
        ValueError: there is no such `dtype`, or the kernels cannot work with the model's shape.
    """
    windows = [group.window or 0 for group in kv_groups(config)]
    cache = native.KVCache(dtype, *native_kv_shape(config), block_size, num_blocks, windows)
    return CpuKVCache(cache, config, dtype, num_state_slots)
