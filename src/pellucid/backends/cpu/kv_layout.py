"""Reads keys and values out of the bytes of a native KV block: the layout of csrc/kv_cache.h, in NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy.kv_codes import ROTATE_BACK, rotate
from pellucid.backends.ops import BlockBytes, HostArray
from pellucid.facts.kv_formats import (
    GROUP_DIMS,
    GROUP_POSITIONS,
    NumberFormat,
    find_kv_format,
)

TILE_TOKENS = 16
_FLOATS = ("f32", "bf16")
_CELLS = {"f32": 1, "bf16": 2, "int8": 4, "int4": 8}  # numbers of a cell


def unpack_layer(data: BlockBytes, dtype: str, num_kv_heads: int, head_dim: int) -> list[HostArray]:
    """Keys and values [block_size, K, D], f32, of one layer.

    Args:
        data: what the block holds in this layer, as `KVCache.read_blocks` gives it.
        dtype: as in `EngineConfig.kv_cache_dtype`.
    """
    keys, values = find_kv_format(dtype).halves
    dims = padded_dim(head_dim) if keys.name not in _FLOATS else -(-head_dim // 16) * 16
    key_bytes, value_bytes = (TILE_TOKENS * dims * half.bits // 8 for half in (keys, values))
    key_factors = dims if keys.is_by_dimension else keys.num_groups(dims) * TILE_TOKENS
    value_factors = values.num_groups(dims) * TILE_TOKENS
    scale_offset = key_bytes + value_bytes
    num_bytes = scale_offset + 2 * (key_factors + value_factors)
    tile_bytes = -(-num_bytes // 64) * 64
    tiles = np.ascontiguousarray(data).reshape(num_kv_heads, -1, tile_bytes)
    shape = *tiles.shape[:2], TILE_TOKENS, dims
    # Cells of K hold dimensions of a token, cells of V tokens of a dimension.
    cell = _CELLS[keys.name]
    k = _numbers(tiles[..., :key_bytes], keys, 128 if keys.bits == 8 else 0)
    k = k.reshape(*shape[:2], dims // cell, TILE_TOKENS, cell).transpose(0, 1, 3, 2, 4)
    cell = _CELLS[values.name]
    v = _numbers(tiles[..., key_bytes:scale_offset], values, 8 if values.bits == 4 else 0)
    v = v.reshape(*shape[:2], TILE_TOKENS // cell, dims, cell).transpose(0, 1, 2, 4, 3)
    raw = np.ascontiguousarray(tiles[..., scale_offset:num_bytes]).view(ml_dtypes.bfloat16)
    factors = raw.astype(np.float32)
    restore_keys = _restored_by_dimension if keys.is_by_dimension else _restored
    both = []
    for numbers in (
        restore_keys(k.reshape(shape), keys, factors[..., :key_factors]),
        _restored(v.reshape(shape), values, factors[..., key_factors:]),
    ):
        # [K, tiles, 16, D] -> [tokens, K, D]
        rows = numbers[..., :head_dim].transpose(1, 2, 0, 3).reshape(-1, num_kv_heads, head_dim)
        both.append(np.ascontiguousarray(rows))
    return both


def unpack_open_group(data: BlockBytes, num_kv_heads: int, head_dim: int) -> HostArray:
    """Keys [32, K, D], f32, of a group in a slot of open keys.

    Args:
        data: of one layer and group, [K, 2 tiles, padded D / 2, 16 tokens, 2] in bf16.
    """
    shape = num_kv_heads, -1, padded_dim(head_dim) // 2, TILE_TOKENS, 2
    pairs = np.ascontiguousarray(data).view(ml_dtypes.bfloat16).reshape(shape)
    keys = pairs.astype(np.float32).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(keys.reshape(GROUP_POSITIONS, num_kv_heads, -1)[..., :head_dim])


def padded_dim(head_dim: int) -> int:
    """Dimensions of a head in codes, or of open keys."""
    return -(-head_dim // GROUP_DIMS) * GROUP_DIMS


def _restored_by_dimension(
    codes: npt.NDArray[np.float32], _: NumberFormat, factors: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The numbers of codes [K, tiles, 16, padded_dim]; factors [K, tiles, padded_dim] are scales in a group's first
    tile, minimums in its second."""
    scales, minimums = (
        np.repeat(factors[:, first::2], 2, axis=1)[:, :, None] for first in range(2)
    )
    with np.errstate(invalid="ignore", over="ignore"):  # of a group that is not complete: anything
        return np.asarray(codes * scales + minimums)


def _restored(
    codes: npt.NDArray[np.float32], half: NumberFormat, scales: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The numbers of codes [K, tiles, 16, padded_dim] with scales [K, tiles, groups * 16]."""
    if half.group_dims is None:
        return codes
    by_token = scales.reshape(*scales.shape[:2], -1, TILE_TOKENS).swapaxes(-1, -2)
    width = min(half.group_dims, codes.shape[-1])
    with np.errstate(invalid="ignore"):  # 0 * infinity: what was not finite
        numbers = codes * np.repeat(by_token, width, axis=-1)[..., : codes.shape[-1]]
    return rotate(numbers, ROTATE_BACK) if half.is_rotated else numbers


def _numbers(data: npt.NDArray[np.uint8], half: NumberFormat, zero: int) -> npt.NDArray[np.float32]:
    """The numbers, or codes, of cells in their order in memory, [..., count]; the code `zero` stands for 0."""
    data = np.ascontiguousarray(data)
    found: npt.NDArray[Any]
    match half.name:
        case "f32":
            found = data.view(np.float32)
        case "bf16":
            found = data.view(ml_dtypes.bfloat16)
        case "int8":
            found = data.astype(np.int16) - zero if zero else data.view(np.int8)
        case _:  # numbers 0..3 of a cell in the low halves of its 4 bytes, 4..7 in the high ones
            halves = data.reshape(*data.shape[:-1], -1, 1, 4)
            both = np.concatenate([halves & 15, halves >> 4], axis=-2)
            found = both.reshape(*data.shape[:-1], -1).astype(np.int8) - zero
    return found.astype(np.float32)
