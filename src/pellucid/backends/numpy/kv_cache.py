"""Keys and values in a NumPy array: a row of bytes for each block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy.dimension_codes import DimensionCodes
from pellucid.backends.numpy.kv_codes import CodeRows, Slots
from pellucid.backends.numpy.open_keys import OpenKeys
from pellucid.backends.ops import BlockBytes, ForwardBatch, HostArray, IntArray
from pellucid.facts.kv_formats import (
    GROUP_POSITIONS,
    OPEN_GROUPS,
    KVFormat,
    NumberFormat,
    find_kv_format,
)
from pellucid.facts.kv_groups import kv_groups, kv_places
from pellucid.facts.model_config import ModelConfig


class StoredRows(Protocol):
    """The keys or the values of one layer, [*slots, K, D] in some format.

    Attributes:
        arrays: the memory of the rows; the first axes of each are those of the slots.
    """

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]: ...

    def write(self, slots: Slots, x: HostArray) -> None:
        """Puts row t of x [T, K, D], rounded to the format, into slots[t]."""
        ...

    def read(self, slots: Slots) -> npt.NDArray[Any]:
        """The numbers in these T slots, [T, K, D], as they were rounded."""
        ...

    def over(self, *arrays: npt.NDArray[Any]) -> "StoredRows":
        """Rows of this format over other memory, laid out as `arrays` is."""
        ...


@dataclass(frozen=True)
class FloatRows:
    """Numbers rounded to the dtype of `numbers` [*slots, K, D]."""

    numbers: npt.NDArray[Any]

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.numbers,)

    def write(self, slots: Slots, x: HostArray) -> None:
        self.numbers[slots] = x

    def read(self, slots: Slots) -> npt.NDArray[Any]:
        return np.asarray(self.numbers[slots])

    def over(self, *arrays: npt.NDArray[Any]) -> "FloatRows":
        return FloatRows(*arrays)


MakeRows = Callable[[int, int, int], StoredRows]  # num_slots, K, D
MakeHalves = tuple[MakeRows, MakeRows]  # of keys and of values


def rows_of_format(dtype: str, compute_dtype: npt.DTypeLike) -> MakeHalves:
    """Functions that make rows of zeros, of keys and of values, in the format `dtype` of `EngineConfig.kv_cache_dtype`.

    "f32" is the compute precision, so f64 where that is f64.

    Raises:
        ValueError: there is no such format.
    """
    floats = {"f32": np.dtype(compute_dtype), "bf16": np.dtype(ml_dtypes.bfloat16)}

    def make_rows(half: NumberFormat) -> MakeRows:
        if half.name in floats:
            return partial(_zero_floats, floats[half.name])
        return partial(
            DimensionCodes.zeros if half.is_by_dimension else CodeRows.zeros,
            half,
        )

    kv_format = find_kv_format(dtype)
    return make_rows(kv_format.keys), make_rows(kv_format.values)


def _zero_floats(dtype: np.dtype[Any], *shape: int) -> FloatRows:
    return FloatRows(np.zeros(shape, dtype))


@dataclass(frozen=True)
class NumpyKVLayer:
    """One layer's keys and values [num_blocks, block_size, K, D].

    Args:
        group: of the layers with which it shares block tables.
        open_keys: of the groups that are not complete; None: each position's keys are stored on their own.
    """

    k: StoredRows
    v: StoredRows
    group: int
    num_kv_heads: int
    block_size: int
    open_keys: OpenKeys | None

    def write(self, k: HostArray, v: HostArray, batch: ForwardBatch) -> None:
        """Rounds k, v [T, K, D] to the format and puts row t into batch.slot_mapping[group, t]; keys by dimension
        once their group is complete."""
        blocks, offsets = np.divmod(batch.slot_mapping[self.group], self.block_size)
        self.v.write((blocks, offsets), v)
        if self.open_keys is None:
            self.k.write((blocks, offsets), k)
            return
        for rows, keys in self.open_keys.store(k, batch):
            last = rows.stop - 1
            whole = np.arange(offsets[last] - GROUP_POSITIONS + 1, offsets[last] + 1)
            self.k.write((np.full(GROUP_POSITIONS, blocks[last]), whole), keys)

    def read(
        self, block_table: IntArray, start: int, stop: int, seq_len: int, dtype: npt.DTypeLike
    ) -> tuple[HostArray, HostArray]:
        """K and V [stop - start, K, D] of positions start .. stop - 1, zeros from seq_len on."""
        positions = np.arange(start, min(stop, seq_len))
        index, offset = np.divmod(positions, self.block_size)
        k, v = (rows.read((block_table[index], offset)) for rows in (self.k, self.v))
        padded = np.zeros((2, stop - start, *k.shape[1:]), dtype)
        padded[0, : len(positions)] = k
        padded[1, : len(positions)] = v
        return padded[0], padded[1]

    def read_own_group(self, slot: int, position: int) -> tuple[int, HostArray] | None:
        """What a query at `position` reads in bf16 of its own group: the group's first position, and its keys
        [32, K, D] as far as they are known; None: it reads what is stored."""
        if self.open_keys is None:
            return None
        group = position // GROUP_POSITIONS
        return group * GROUP_POSITIONS, self.open_keys.latest[slot, group]


@dataclass(frozen=True)
class LayerLayout:
    """Where a layer's keys and values are in the bytes of a block.

    Args:
        group: of the layer.
        start: of its bytes.
        halves: keys of one block [block_size, K, D], and values, which follow.
        num_kv_heads: K.
        head_dim: D.
        block_size: tokens per block.
    """

    group: int
    start: int
    halves: tuple[StoredRows, StoredRows]
    num_kv_heads: int
    head_dim: int
    block_size: int

    @property
    def end(self) -> int:
        return self.start + sum(array.nbytes for half in self.halves for array in half.arrays)

    def over(
        self, blocks: npt.NDArray[np.uint8], open_keys: OpenKeys | None = None
    ) -> NumpyKVLayer:
        """The layer in the memory `blocks` [num_blocks, bytes_per_block]."""
        start, halves = self.start, []
        for half in self.halves:
            arrays = []
            for array in half.arrays:
                own = blocks[:, start : start + array.nbytes].view(array.dtype)
                arrays.append(own.reshape(len(blocks), *array.shape))
                start += array.nbytes
            halves.append(half.over(*arrays))
        k, v = halves
        return NumpyKVLayer(k, v, self.group, self.num_kv_heads, self.block_size, open_keys)


@dataclass(frozen=True)
class NumpyStateLayer:
    """One layer's recurrent states, indexed by slot.

    Args:
        rows: [slots, K - 1, C] the last rows of the convolution's input.
        matrices: [slots, H, key_dim, value_dim].
    """

    rows: HostArray
    matrices: HostArray


@dataclass(frozen=True)
class NumpyKVCache:
    """All layers' keys, values and recurrent states; made by `NumpyBackend.make_kv_cache`.

    Args:
        blocks: [num_blocks, bytes_per_block].
        layouts: of all layers; of recurrent ones their states.
        open_keys: by group and start of a layout, where the format has them.
    """

    blocks: npt.NDArray[np.uint8]
    layouts: Sequence[LayerLayout | NumpyStateLayer]
    open_keys: Mapping[tuple[int, int], OpenKeys]

    @cached_property
    def layers(self) -> tuple[NumpyKVLayer | NumpyStateLayer, ...]:
        return tuple(
            each
            if isinstance(each, NumpyStateLayer)
            else each.over(self.blocks, self.open_keys.get((each.group, each.start)))
            for each in self.layouts
        )

    @property
    def num_bytes(self) -> int:
        return self.blocks.nbytes + sum(array.nbytes for array in self._slot_arrays())

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        for array in self._slot_arrays():
            array[target_slot] = array[source_slot]

    @property
    def bytes_per_state(self) -> int:
        return sum(array[0].nbytes for array in self._slot_arrays())

    def read_state(self, slot: int) -> BlockBytes:
        parts = [array[slot].reshape(-1).view(np.uint8) for array in self._slot_arrays()]
        return np.concatenate(parts)

    def write_state(self, slot: int, data: BlockBytes) -> None:
        assert data.shape == (self.bytes_per_state,)
        start = 0
        for array in self._slot_arrays():
            own = array[slot]
            part = data[start : start + own.nbytes]
            own[:] = part.copy().view(own.dtype).reshape(own.shape)
            start += own.nbytes

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        layout = self.layouts[layer]
        assert isinstance(layout, LayerLayout)
        kept = self.open_keys[layout.group, layout.start].slots[slot, group % OPEN_GROUPS]
        return np.asarray(kept[..., : layout.head_dim], np.float32)

    def _slot_arrays(self) -> list[npt.NDArray[Any]]:
        states = (each for each in self.layouts if isinstance(each, NumpyStateLayer))
        arrays = [array for layer in states for array in (layer.rows, layer.matrices)]
        return arrays + [each.slots for each in self.open_keys.values()]

    @property
    def bytes_per_block(self) -> int:
        return int(self.blocks.shape[1])

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        for source_id, target_id in zip(source_ids, target_ids, strict=True):
            self.blocks[target_id] = self.blocks[source_id]

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        return [np.array(self.blocks[block_id]) for block_id in block_ids]

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        for block_id, data in zip(block_ids, contents, strict=True):
            if data.shape != (self.bytes_per_block,):
                raise ValueError(f"data: has {data.size} bytes, a block {self.bytes_per_block}")
            self.blocks[block_id] = data

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        layout = self.layouts[layer]
        assert isinstance(layout, LayerLayout)
        own = layout.over(data[None])
        table, size = np.zeros(1, np.int64), own.block_size
        return own.read(table, 0, size, size, np.float32)


def make_numpy_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: str,
    num_state_slots: int,
    compute_dtype: npt.DTypeLike,
) -> NumpyKVCache:
    """A cache of zeros for all layers of `config`; states have the dtype `compute_dtype`.

    Raises:
        ValueError: there is no such `dtype`, or a block has a part of a group of positions.
    """
    places = _layouts(config, block_size, rows_of_format(dtype, compute_dtype))
    bytes_per_block = max(layout.end for layout in places if layout is not None)
    layouts: list[LayerLayout | NumpyStateLayer] = []
    for layer, layout in zip(config.layers, places, strict=True):
        if layout is not None:
            layouts.append(layout)
            continue
        assert layer.recurrence is not None
        state = layer.recurrence.state
        rows = num_state_slots, state.num_rows, state.num_channels
        matrices = num_state_slots, state.num_heads, state.key_dim, state.value_dim
        layouts.append(
            NumpyStateLayer(np.zeros(rows, compute_dtype), np.zeros(matrices, compute_dtype))
        )
    blocks = np.zeros((num_blocks, bytes_per_block), np.uint8)
    return NumpyKVCache(blocks, layouts, _open_keys(places, find_kv_format(dtype), num_state_slots))


def _open_keys(
    places: Sequence[LayerLayout | None], kv_format: KVFormat, num_slots: int
) -> dict[tuple[int, int], OpenKeys]:
    if kv_format.open_positions == 0:
        return {}
    return {
        (each.group, each.start): OpenKeys.zeros(
            kv_format.keys, num_slots, each.num_kv_heads, each.head_dim
        )
        for each in places
        if each is not None
    }


def numpy_kv_bytes_per_block(config: ModelConfig, block_size: int, make_halves: MakeHalves) -> int:
    """Bytes of one block, K and V, scales included."""
    layouts = _layouts(config, block_size, make_halves)
    return max(layout.end for layout in layouts if layout is not None)


def _layouts(
    config: ModelConfig, block_size: int, make_halves: MakeHalves
) -> list[LayerLayout | None]:
    """Of each layer; layers that share keys and values have the same place, recurrent ones none."""
    groups = kv_groups(config)
    of_groups: list[list[LayerLayout]] = []
    for number, group in enumerate(groups):
        start, own = 0, []
        for index in group.layers:
            attention = config.layers[index].attention
            assert attention is not None
            shape = block_size, attention.num_kv_heads, attention.head_dim
            make_keys, make_values = make_halves
            halves = make_keys(*shape), make_values(*shape)
            own.append(LayerLayout(number, start, halves, *shape[1:], block_size))
            start = own[-1].end
        of_groups.append(own)
    return [
        None if place is None else of_groups[place.group][place.index]
        for place in kv_places(config, groups)
    ]
