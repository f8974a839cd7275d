"""Keys and values in NumPy arrays: one row per slot."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy_kv_codes import CodeRows
from pellucid.backends.ops import Array, BlockBytes, IntArray
from pellucid.config import ModelConfig


class StoredRows(Protocol):
    """The keys or the values of one layer, [num_slots, K, D] in some format.

    Attributes:
        arrays: the memory behind them; the first axis of each is the slot.
    """

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]: ...

    def write(self, slots: IntArray, x: Array) -> None:
        """Puts row t of x [T, K, D], rounded to the format, into slots[t]."""
        ...

    def read(self, slots: IntArray) -> npt.NDArray[Any]:
        """The numbers in these slots, [len(slots), K, D], as they were rounded."""
        ...

    def over(self, *arrays: npt.NDArray[Any]) -> "StoredRows":
        """Rows of this format over other memory, laid out as `arrays` is."""
        ...


@dataclass(frozen=True)
class FloatRows:
    """Numbers rounded to the dtype of `numbers` [num_slots, K, D]."""

    numbers: npt.NDArray[Any]

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.numbers,)

    def write(self, slots: IntArray, x: Array) -> None:
        self.numbers[slots] = x

    def read(self, slots: IntArray) -> npt.NDArray[Any]:
        return np.asarray(self.numbers[slots])

    def over(self, *arrays: npt.NDArray[Any]) -> "FloatRows":
        return FloatRows(*arrays)


MakeRows = Callable[[int, int, int], StoredRows]  # num_slots, K, D


def rows_of_format(dtype: str, compute_dtype: npt.DTypeLike) -> MakeRows:
    """What makes rows of zeros in the format `dtype`, as in `EngineConfig.kv_cache_dtype`.

    "f32" is the compute precision, so f64 where that is f64.

    Raises:
        ValueError: there is no such format.
    """
    formats: dict[str, MakeRows] = {
        "f32": partial(_zero_floats, np.dtype(compute_dtype)),
        "bf16": partial(_zero_floats, np.dtype(ml_dtypes.bfloat16)),
        "int8": partial(CodeRows.zeros, 8),
        "int4": partial(CodeRows.zeros, 4),
    }
    if dtype not in formats:
        raise ValueError(f"kv_cache_dtype={dtype!r}: allowed are {', '.join(map(repr, formats))}")
    return formats[dtype]


def _zero_floats(dtype: np.dtype[Any], *shape: int) -> FloatRows:
    return FloatRows(np.zeros(shape, dtype))


@dataclass(frozen=True)
class NumpyKVLayer:
    """One layer's keys and values, indexed by slot."""

    k: StoredRows
    v: StoredRows
    num_kv_heads: int
    block_size: int

    def write(self, k: Array, v: Array, slot_mapping: IntArray) -> None:
        """Rounds k, v [T, K, D] to the format and puts row t into slot_mapping[t]."""
        self.k.write(slot_mapping, k)
        self.v.write(slot_mapping, v)

    def read(
        self, block_table: IntArray, start: int, stop: int, seq_len: int, dtype: npt.DTypeLike
    ) -> tuple[Array, Array]:
        """K and V [stop - start, K, D] of positions start .. stop - 1, zeros from seq_len on."""
        positions = np.arange(start, min(stop, seq_len))
        block, offset = np.divmod(positions, self.block_size)
        slots = block_table[block] * self.block_size + offset
        k, v = (rows.read(slots) for rows in (self.k, self.v))
        padded = np.zeros((2, stop - start, *k.shape[1:]), dtype)
        padded[0, : len(slots)] = k
        padded[1, : len(slots)] = v
        return padded[0], padded[1]


@dataclass(frozen=True)
class NumpyKVCache:
    """All layers' keys and values; made by `NumpyBackend.make_kv_cache`."""

    layers: tuple[NumpyKVLayer, ...]
    num_blocks: int

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays())

    @property
    def bytes_per_block(self) -> int:
        return self.num_bytes // self.num_blocks

    def copy_block(self, source_id: int, target_id: int) -> None:
        for source, target in zip(self._parts(source_id), self._parts(target_id), strict=True):
            target[:] = source

    def read_block(self, block_id: int) -> BlockBytes:
        return np.concatenate(self._parts(block_id))

    def write_block(self, block_id: int, data: BlockBytes) -> None:
        if data.shape != (self.bytes_per_block,):
            raise ValueError(f"data: has {data.size} bytes, a block {self.bytes_per_block}")
        start = 0
        for part in self._parts(block_id):
            part[:] = data[start : start + len(part)]
            start += len(part)

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[Array, Array]:
        own, block_size = self.layers[layer], self.layers[0].block_size
        before = self._own_layers()
        before = before[: next(i for i, each in enumerate(before) if each is own)]
        arrays = [array for each in before for array in (*each.k.arrays, *each.v.arrays)]
        start = sum(array[:block_size].nbytes for array in arrays)
        halves = []
        for rows in (own.k, own.v):
            parts = []
            for array in rows.arrays:
                end = start + array[:block_size].nbytes
                parts.append(data[start:end].copy().view(array.dtype).reshape(-1, *array.shape[1:]))
                start = end
            halves.append(rows.over(*parts).read(np.arange(block_size)).astype(np.float32))
        k, v = halves
        return k, v

    def _own_layers(self) -> list[NumpyKVLayer]:
        """Each once, where layers share one."""
        return list({id(layer): layer for layer in self.layers}.values())

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [
            array for layer in self._own_layers() for array in (*layer.k.arrays, *layer.v.arrays)
        ]

    def _parts(self, block_id: int) -> list[BlockBytes]:
        """Views of a block's memory."""
        block_size = self.layers[0].block_size
        return [
            array[block_id * block_size :][:block_size].reshape(-1).view(np.uint8)
            for array in self._arrays()
        ]


def make_numpy_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, make_rows: MakeRows
) -> NumpyKVCache:
    """A cache of zeros for all layers of `config`; layers that share keys and values have one handle."""
    layers: list[NumpyKVLayer] = []
    for layer in config.layers:
        attention = layer.attention
        if attention.shared_kv_layer is not None:
            layers.append(layers[attention.shared_kv_layer])
            continue
        shape = (num_blocks * block_size, attention.num_kv_heads, attention.head_dim)
        layers.append(
            NumpyKVLayer(make_rows(*shape), make_rows(*shape), attention.num_kv_heads, block_size)
        )
    return NumpyKVCache(tuple(layers), num_blocks)


def numpy_kv_bytes_per_block(config: ModelConfig, block_size: int, make_rows: MakeRows) -> int:
    """Bytes of one block in all layers, K and V, scales included."""
    return make_numpy_kv_cache(config, 1, block_size, make_rows).num_bytes
