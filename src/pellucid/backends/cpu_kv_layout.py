"""Reads keys and values out of the bytes of a native KV block: the layout of csrc/kv_cache.h, in NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.ops import Array, BlockBytes

TILE_TOKENS = 16
INT4_GROUP_DIMS = 32
_CELLS = {"f32": 1, "bf16": 2, "int8": 4, "int4": 8}  # numbers of a cell
_BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4}  # of a number


def unpack_layer(data: BlockBytes, dtype: str, num_kv_heads: int, head_dim: int) -> list[Array]:
    """Keys and values [block_size, K, D], f32, of one layer.

    Args:
        data: what the block holds in this layer, as `KVCache.read_block` gives it.
        dtype: as in `EngineConfig.kv_cache_dtype`.
    """
    padding = INT4_GROUP_DIMS if dtype == "int4" else 16
    padded_dim = -(-head_dim // padding) * padding
    num_groups = {"int8": 1, "int4": padded_dim // INT4_GROUP_DIMS}.get(dtype, 0)
    half_bytes = TILE_TOKENS * padded_dim * _BITS[dtype] // 8  # of the keys of a tile
    tile_bytes = 2 * half_bytes + 4 * num_groups * TILE_TOKENS
    tiles = np.ascontiguousarray(data).reshape(num_kv_heads, -1, tile_bytes)
    cell = _CELLS[dtype]
    k = _numbers(tiles[..., :half_bytes], dtype, 128)
    v = _numbers(tiles[..., half_bytes : 2 * half_bytes], dtype, 0)
    shape = tiles.shape[:2]
    # Cells of K hold dimensions of a token, cells of V tokens of a dimension.
    k = k.reshape(*shape, padded_dim // cell, TILE_TOKENS, cell).transpose(0, 1, 3, 2, 4)
    v = v.reshape(*shape, TILE_TOKENS // cell, padded_dim, cell).transpose(0, 1, 2, 4, 3)
    both = np.stack([half.reshape(*shape, TILE_TOKENS, padded_dim) for half in (k, v)])
    if num_groups:
        raw = np.ascontiguousarray(tiles[..., 2 * half_bytes :]).view(ml_dtypes.bfloat16)
        scales = raw.astype(np.float32).reshape(*shape, 2, num_groups, TILE_TOKENS)
        by_token = scales.transpose(2, 0, 1, 4, 3)  # [2, K, tiles, 16, groups]
        with np.errstate(invalid="ignore"):  # 0 * infinity: what was not finite
            both = both * np.repeat(by_token, padded_dim // num_groups, axis=-1)
    # [2, K, tiles, 16, D] -> [2, tokens, K, D]
    rows = both[..., :head_dim].transpose(0, 2, 3, 1, 4).reshape(2, -1, num_kv_heads, head_dim)
    return [np.ascontiguousarray(half) for half in rows]


def _numbers(data: npt.NDArray[np.uint8], dtype: str, int8_zero: int) -> npt.NDArray[np.float32]:
    """The numbers, or codes, of cells in their order in memory, [..., count]."""
    data = np.ascontiguousarray(data)
    found: npt.NDArray[Any]
    match dtype:
        case "f32":
            found = data.view(np.float32)
        case "bf16":
            found = data.view(ml_dtypes.bfloat16)
        case "int8":
            found = data.astype(np.int16) - int8_zero if int8_zero else data.view(np.int8)
        case _:  # numbers 0..3 of a cell in the low halves of its 4 bytes, 4..7 in the high ones
            halves = data.reshape(*data.shape[:-1], -1, 1, 4)
            both = np.concatenate([halves & 15, halves >> 4], axis=-2)
            found = both.reshape(*data.shape[:-1], -1).astype(np.int8) - 8
    return found.astype(np.float32)
