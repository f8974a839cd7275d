"""Keys, values and recurrent states on a device: the bytes of the NumPy cache, a row for each block."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.backends.numpy.dimension_codes import DimensionCodes
from pellucid.backends.numpy.kv_cache import (
    LayerLayout,
    NumpyKVCache,
    NumpyStateLayer,
    make_numpy_kv_cache,
    numpy_kv_bytes_per_block,
    rows_of_format,
)
from pellucid.backends.numpy.kv_codes import CodeRows
from pellucid.backends.ops import BlockBytes, HostArray, IntArray
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_codes import (
    quantize_groups,
    quantize_rows,
    restore_groups,
    restore_rows,
)
from pellucid.backends.torch.memory import TORCH_DTYPES, indices, to_device
from pellucid.backends.torch.open_keys import Area, OpenKeys
from pellucid.facts.kv_formats import GROUP_POSITIONS, OPEN_GROUPS, NumberFormat, find_kv_format
from pellucid.facts.kv_groups import shares_layers
from pellucid.facts.model_config import ModelConfig


@dataclass(frozen=True)
class TorchRows:
    """The keys or the values of a layer, of which each position is stored on its own.

    Args:
        format: of codes; None: numbers.
        head_dim: D.
        arrays: numbers [num_blocks, block_size, K, D]; or codes, and scales [num_blocks, block_size, K, groups].
    """

    format: NumberFormat | None
    head_dim: int
    arrays: tuple[Tensor, ...]

    def write(self, slots: tuple[Tensor, Tensor], x: Tensor) -> None:
        """Rounds row t of x [T, K, D] to the format and puts it into block slots[0][t], slot slots[1][t]."""
        parts = (x,) if self.format is None else quantize_rows(x, self.format)
        for array, part in zip(self.arrays, parts, strict=True):
            array[slots] = part.to(array.dtype)

    def read(self, block_ids: Tensor) -> Tensor:
        """The numbers of blocks in f32, [*block_ids, block_size, K, D]."""
        parts = [array[block_ids] for array in self.arrays]
        if self.format is None:
            return parts[0].float()
        codes, scales = parts
        return restore_rows(codes, scales, self.format, self.head_dim)


@dataclass(frozen=True)
class TorchDimensionKeys:
    """The keys of a layer, of which groups of positions are stored together.

    Args:
        head_dim: D.
        codes, factors: of all blocks, as `DimensionCodes`.
        open: keys that are not codes yet.
    """

    head_dim: int
    codes: Tensor
    factors: Tensor
    open: OpenKeys

    def write(self, slots: tuple[Tensor, Tensor], k: Tensor, batch: TorchBatch) -> None:
        """Keeps the keys k [T, K, D] of a step, of which row t is for block slots[0][t], slot slots[1][t], and
        stores the groups that are complete."""
        groups = batch.step_groups
        whole = self.open.store(k, groups)
        if len(whole) == 0:
            return
        codes, factors = quantize_groups(whole)
        blocks, lasts = (each[groups.last_rows] for each in slots)
        own = torch.arange(1 - GROUP_POSITIONS, 1, device=lasts.device)
        self.codes[blocks[:, None], lasts[:, None] + own] = codes
        self.factors[blocks, lasts // GROUP_POSITIONS] = factors

    def read(self, block_ids: Tensor) -> Tensor:
        """As `TorchRows.read`."""
        return restore_groups(self.codes[block_ids], self.factors[block_ids], self.head_dim)


@dataclass(frozen=True)
class TorchKVLayer:
    """One layer's keys and values.

    Args:
        group: of the layers with which it shares block tables.
    """

    k: TorchRows | TorchDimensionKeys
    v: TorchRows
    group: int
    num_kv_heads: int
    block_size: int

    @property
    def open_keys(self) -> OpenKeys | None:
        """None: each position's keys are stored on their own."""
        return self.k.open if isinstance(self.k, TorchDimensionKeys) else None

    def write(self, k: Tensor, v: Tensor, batch: TorchBatch) -> None:
        """As `NumpyKVLayer.write`."""
        own = indices(batch.slot_mapping, k.device)[self.group]
        slots = own // self.block_size, own % self.block_size
        if isinstance(self.k, TorchDimensionKeys):
            self.k.write(slots, k, batch)
        else:
            self.k.write(slots, k)
        self.v.write(slots, v)

    def read(self, tables: Tensor, start: int, num_keys: int) -> tuple[Tensor, Tensor]:
        """Keys and values in f32, [C, num_keys, K, D], of positions from `start` on; of positions without a block,
        those of any block.

        Args:
            tables: [C, blocks] of the layer's group.
            start: a multiple of the block size, like `num_keys`.
        """
        size = self.block_size
        own = tables[:, start // size : (start + num_keys) // size]
        missing = num_keys // size - own.shape[1]
        block_ids = torch.nn.functional.pad(own, (0, missing)).clamp(min=0)
        k, v = (rows.read(block_ids).flatten(1, 2) for rows in (self.k, self.v))
        return k, v


@dataclass(frozen=True)
class TorchStateLayer:
    """One layer's recurrent states, as `NumpyStateLayer`."""

    rows: Tensor
    matrices: Tensor


class TorchKVCache:
    """All layers' keys, values and recurrent states.

    Args:
        layout: a NumPy cache of one block and one state, whose bytes mean the same.
        device: where they are.
        open_keys: by group and start of a layout, where the format has them.
        has_spare: whether there is one block more, for rows that nobody reads.
    """

    def __init__(
        self,
        layout: NumpyKVCache,
        num_blocks: int,
        num_state_slots: int,
        device: torch.device,
        open_keys: Mapping[tuple[int, int], OpenKeys],
        has_spare: bool = False,
    ) -> None:
        self._layout = layout
        self._device = device
        self._open_keys = open_keys
        self.spare_block = num_blocks if has_spare else None
        shape = num_blocks + has_spare, layout.bytes_per_block
        self._blocks = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.layers: tuple[TorchKVLayer | TorchStateLayer, ...] = tuple(
            _states_like(each, num_state_slots, device)
            if isinstance(each, NumpyStateLayer)
            else _layer_over(each, self._blocks, open_keys.get((each.group, each.start)))
            for each in layout.layouts
        )

    @property
    def block_size(self) -> int:
        return next(each.block_size for each in self.layers if isinstance(each, TorchKVLayer))

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (self._blocks, *self._slot_arrays()))

    @property
    def bytes_per_block(self) -> int:
        return self._layout.bytes_per_block

    @property
    def bytes_per_state(self) -> int:
        return self._layout.bytes_per_state

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        for array in self._slot_arrays():
            array[target_slot] = array[source_slot]

    def read_state(self, slot: int) -> BlockBytes:
        parts = [array[slot].reshape(-1).view(torch.uint8) for array in self._slot_arrays()]
        return np.array(torch.cat(parts).cpu().numpy())

    def write_state(self, slot: int, data: BlockBytes) -> None:
        assert data.shape == (self.bytes_per_state,)
        start, own = 0, to_device(data, self._device)
        for array in self._slot_arrays():
            part = own[start : start + array[slot].nbytes].clone()
            array[slot] = part.view(array.dtype).reshape(array[slot].shape)
            start += array[slot].nbytes

    @contextmanager
    def states_kept(self, slots: IntArray) -> Iterator[None]:
        """What happens within changes no state of these slots."""
        own = indices(slots, self._device)
        kept = [array[own] for array in self._slot_arrays()]
        yield
        for array, numbers in zip(self._slot_arrays(), kept, strict=True):
            array[own] = numbers

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        sources, targets = (self._ids(each) for each in (source_ids, target_ids))
        self._blocks[targets] = self._blocks[sources]

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        together = self._blocks[self._ids(block_ids)].cpu().numpy()
        return [np.array(each) for each in together]

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        for data in contents:
            if data.shape != (self.bytes_per_block,):
                raise ValueError(f"data: has {data.size} bytes, a block {self.bytes_per_block}")
        if contents:
            self._blocks[self._ids(block_ids)] = to_device(np.stack(contents), self._device)

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        return self._layout.unpack_block(data, layer)

    def _ids(self, block_ids: Sequence[int]) -> Tensor:
        return indices(np.array(block_ids, np.int64), self._device)

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        own = self.layers[layer]
        assert isinstance(own, TorchKVLayer) and isinstance(own.k, TorchDimensionKeys)
        kept = own.k.open.slots[slot, group % OPEN_GROUPS]
        return np.array(kept[..., : own.k.head_dim].float().cpu().numpy())

    def _slot_arrays(self) -> list[Tensor]:
        states = (each for each in self.layers if isinstance(each, TorchStateLayer))
        arrays = [array for layer in states for array in (layer.rows, layer.matrices)]
        return arrays + [each.slots for each in self._open_keys.values()]


def make_torch_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: str,
    num_state_slots: int,
    device: torch.device,
    has_spare: bool = False,
) -> TorchKVCache:
    """A cache of zeros for all layers of `config`.

    Args:
        has_spare: as of `TorchKVCache`.

    Raises:
        ValueError: there is no such `dtype` on a device.
    """
    layout = make_numpy_kv_cache(config, 1, block_size, dtype, 1, np.float32)
    keys, area = find_kv_format(dtype).keys, Area()
    open_keys = {
        (each.group, each.start): OpenKeys.zeros(
            keys,
            num_state_slots,
            each.num_kv_heads,
            each.head_dim,
            Area() if shares_layers(config) else area,
            device,
        )
        for each in layout.layouts
        if keys.is_by_dimension and not isinstance(each, NumpyStateLayer)
    }
    return TorchKVCache(layout, num_blocks, num_state_slots, device, open_keys, has_spare)


def torch_kv_bytes_per_block(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes of one block, K and V, scales included. Errors are those of `make_torch_kv_cache`."""
    return numpy_kv_bytes_per_block(config, block_size, rows_of_format(dtype, np.float32))


def _layer_over(layout: LayerLayout, blocks: Tensor, open_keys: OpenKeys | None) -> TorchKVLayer:
    """A layer in the memory `blocks` [num_blocks, bytes_per_block]."""
    start = layout.start
    halves: list[Any] = []
    for half in layout.halves:
        arrays = []
        for array in half.arrays:
            own = blocks[:, start : start + array.nbytes].view(TORCH_DTYPES[array.dtype])
            arrays.append(own.unflatten(1, array.shape))
            start += array.nbytes
        if isinstance(half, DimensionCodes):
            assert open_keys is not None
            codes, factors = arrays
            halves.append(TorchDimensionKeys(half.head_dim, codes, factors, open_keys))
        elif isinstance(half, CodeRows):
            halves.append(TorchRows(half.format, half.head_dim, tuple(arrays)))
        else:
            halves.append(TorchRows(None, half.arrays[0].shape[-1], tuple(arrays)))
    k, v = halves
    return TorchKVLayer(k, v, layout.group, layout.num_kv_heads, layout.block_size)


def _states_like(layer: NumpyStateLayer, num_slots: int, device: torch.device) -> TorchStateLayer:
    rows, matrices = (
        torch.zeros((num_slots, *array.shape[1:]), device=device)
        for array in (layer.rows, layer.matrices)
    )
    return TorchStateLayer(rows, matrices)
