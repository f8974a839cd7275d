"""The native KV cache, and its handles that models pass to ops."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from pellucid.backends import native
from pellucid.backends.cpu.kv_layout import padded_dim, unpack_layer, unpack_open_group
from pellucid.backends.ops import BlockBytes, HostArray
from pellucid.facts.kv_formats import GROUP_POSITIONS, OPEN_GROUPS
from pellucid.facts.kv_groups import kv_groups, kv_places, shares_layers
from pellucid.facts.model_config import ModelConfig, StateShape


class CpuKVLayer(Struct, frozen=True):
    """One layer of a cache. While a forward is traced, `cache` is None: the cache is an argument of each step.

    Args:
        group: of the layers with which it shares block tables.
        index: in its group.
        num_heads: H, of this process, as K.
        num_kv_heads: K.
        head_dim: D.
        max_seq_len: positions that a sequence in it can have.
    """

    group: int
    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_seq_len: int
    cache: "CpuKVCache | None"


class CpuStateLayer(Struct, frozen=True):
    """One layer's recurrent states; `cache` is None while a forward is traced.

    Args:
        shape: of the state of one sequence: first the rows of its convolution, then its matrices.
        first: number of a slot's with which the layer's begin.
    """

    shape: StateShape
    first: int
    cache: "CpuKVCache | None"


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
        self._groups = native_kv_groups(config)
        max_seq_len = cache.num_blocks * cache.block_size
        if any(
            group.window is not None for group in kv_groups(config)
        ):  # its blocks that have left their windows are free
            max_seq_len = max(max_seq_len, config.context_length)
        self.layers: Sequence[CpuKVLayer | CpuStateLayer] = _layers(config, max_seq_len, self)

    @property
    def num_bytes(self) -> int:
        return self.native.num_bytes + (0 if self.states is None else self.states.nbytes)

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        if self.states is not None:
            self.states[target_slot] = self.states[source_slot]
        if self.native.slot_bytes:
            self.native.copy_slot(source_slot, target_slot)

    @property
    def bytes_per_state(self) -> int:
        return self._own_state_bytes + self.native.slot_bytes

    def read_state(self, slot: int) -> BlockBytes:
        data = np.empty(self.bytes_per_state, np.uint8)
        if self.states is not None:
            data[: self._own_state_bytes] = self.states[slot].view(np.uint8)
        if self.native.slot_bytes:
            self.native.read_slot(slot, data[self._own_state_bytes :])
        return data

    def write_state(self, slot: int, data: BlockBytes) -> None:
        assert data.shape == (self.bytes_per_state,)
        if self.states is not None:
            self.states[slot].view(np.uint8)[:] = data[: self._own_state_bytes]
        if self.native.slot_bytes:
            self.native.write_slot(slot, np.ascontiguousarray(data[self._own_state_bytes :]))

    @property
    def _own_state_bytes(self) -> int:
        return 0 if self.states is None else self.states[0].nbytes

    @property
    def bytes_per_block(self) -> int:
        return self.native.bytes_per_block

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        for source_id, target_id in zip(source_ids, target_ids, strict=True):
            self.native.copy_block(source_id, target_id)

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        contents = [np.empty(self.bytes_per_block, np.uint8) for _ in block_ids]
        for block_id, data in zip(block_ids, contents, strict=True):
            self.native.read_block(block_id, data)
        return contents

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        for block_id, data in zip(block_ids, contents, strict=True):
            self.native.write_block(block_id, data)

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        handle = self.layers[layer]
        assert isinstance(handle, CpuKVLayer)
        alone = NativeKVGroup(1, handle.num_kv_heads, handle.head_dim, 0)
        layer_bytes = native.kv_bytes_per_block(self._dtype, [alone], self.native.block_size)
        own = data[handle.index * layer_bytes :][:layer_bytes]
        k, v = unpack_layer(own, self._dtype, handle.num_kv_heads, handle.head_dim)
        return k, v

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        handle = self.layers[layer]
        assert isinstance(handle, CpuKVLayer)
        data = np.empty(self.native.slot_bytes, np.uint8)
        self.native.read_slot(slot, data)
        sizes = [
            2 * GROUP_POSITIONS * each.num_kv_heads * padded_dim(each.head_dim)
            for each in self._groups
        ]
        before = sum(
            each.num_layers * size
            for each, size in zip(self._groups[: handle.group], sizes[: handle.group], strict=True)
        )
        size = sizes[handle.group]
        first = OPEN_GROUPS * (before + handle.index * size) + group % OPEN_GROUPS * size
        return unpack_open_group(data[first : first + size], handle.num_kv_heads, handle.head_dim)


class TracedKVCache:
    """The cache of a traced forward: handles without memory."""

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
        if layer.attention is not None:
            assert place is not None
            own = layer.attention
            shape = own.num_heads, own.num_kv_heads, own.head_dim
            handles.append(CpuKVLayer(place.group, place.index, *shape, max_seq_len, cache))
        elif layer.recurrence is not None:
            handles.append(CpuStateLayer(layer.recurrence.state, num_numbers, cache))
            num_numbers += layer.recurrence.state.num_numbers
    return handles


class NativeKVGroup(NamedTuple):
    """A group of layers in the form of the native cache.

    Attributes:
        window: keys that a token sees; 0: all before it.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int


def native_kv_groups(config: ModelConfig) -> list[NativeKVGroup]:
    """The groups of a model in order."""
    groups = []
    for group in kv_groups(config):
        attention = config.layers[group.layers[0]].attention
        assert attention is not None
        shape = attention.num_kv_heads, attention.head_dim
        groups.append(NativeKVGroup(len(group.layers), *shape, group.window or 0))
    return groups


def make_cpu_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: str,
    num_state_slots: int,
    max_step_tokens: int,
) -> CpuKVCache:
    """A cache of zeros for all layers of `config`.

    Args:
        max_step_tokens: tokens that a native step computes.

    Raises:
        ValueError: there is no such `dtype`, or the kernels cannot work with the model's shape.
    """
    cache = native.KVCache(
        dtype,
        native_kv_groups(config),
        block_size,
        num_blocks,
        num_slots=num_state_slots,
        max_step_tokens=max_step_tokens,
        has_area_for_each_layer=shares_layers(config),
    )
    return CpuKVCache(cache, config, dtype, num_state_slots)
