"""Reads keys and values out of the bytes of a native KV block: the layout of csrc/kv_cache.h, in NumPy."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy_kv_codes import ROTATE_BACK, rotate
from pellucid.backends.ops import BlockBytes, HostArray
from pellucid.facts.kv_formats import GROUP_DIMS, NumberFormat, find_kv_format

TILE_TOKENS = 16
_CELLS = {"f32": 1, "bf16": 2, "int8": 4, "int4": 8}  # numbers of a cell


def unpack_layer(data: BlockBytes, dtype: str, num_kv_heads: int, head_dim: int) -> list[HostArray]:
    """Keys and values [block_size, K, D], f32, of one layer.

    Args:
        data: what the block holds in this layer, as `KVCache.read_blocks` gives it.
        dtype: as in `EngineConfig.kv_cache_dtype`.
    """
    keys, values = find_kv_format(dtype).halves
    padding = 16 if keys.group_dims is None else GROUP_DIMS
    padded_dim = -(-head_dim // padding) * padding
    key_bytes, value_bytes = (TILE_TOKENS * padded_dim * half.bits // 8 for half in (keys, values))
    key_scales = keys.num_groups(padded_dim)
    value_scales = values.num_groups(padded_dim)
    scale_offset = key_bytes + value_bytes
    num_bytes = scale_offset + 2 * TILE_TOKENS * (key_scales + value_scales)
    tile_bytes = -(-num_bytes // 64) * 64
    tiles = np.ascontiguousarray(data).reshape(num_kv_heads, -1, tile_bytes)
    k = _numbers(tiles[..., :key_bytes], keys, 128)
    v = _numbers(tiles[..., key_bytes:scale_offset], values, 0)
    shape = tiles.shape[:2]
    # Cells of K hold dimensions of a token, cells of V tokens of a dimension.
    cell = _CELLS[keys.name]
    k = k.reshape(*shape, padded_dim // cell, TILE_TOKENS, cell).transpose(0, 1, 3, 2, 4)
    cell = _CELLS[values.name]
    v = v.reshape(*shape, TILE_TOKENS // cell, padded_dim, cell).transpose(0, 1, 2, 4, 3)
    raw = np.ascontiguousarray(tiles[..., scale_offset:num_bytes]).view(ml_dtypes.bfloat16)
    scales = raw.astype(np.float32).reshape(*shape, key_scales + value_scales, TILE_TOKENS)
    own_scales = scales[..., :key_scales, :], scales[..., key_scales:, :]
    both = []
    for half, codes, of_half in zip((keys, values), (k, v), own_scales, strict=True):
        numbers = _restored(codes.reshape(*shape, TILE_TOKENS, padded_dim), half, of_half)
        # [K, tiles, 16, D] -> [tokens, K, D]
        rows = numbers[..., :head_dim].transpose(1, 2, 0, 3).reshape(-1, num_kv_heads, head_dim)
        both.append(np.ascontiguousarray(rows))
    return both


def _restored(
    codes: npt.NDArray[np.float32], half: NumberFormat, scales: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The numbers of codes [K, tiles, 16, padded_dim] with scales [K, tiles, groups, 16]."""
    if half.group_dims is None:
        return codes
    by_token = scales.swapaxes(-1, -2)  # [K, tiles, 16, groups]
    width = min(half.group_dims, codes.shape[-1])
    with np.errstate(invalid="ignore"):  # 0 * infinity: what was not finite
        numbers = codes * np.repeat(by_token, width, axis=-1)[..., : codes.shape[-1]]
    return rotate(numbers, ROTATE_BACK) if half.is_rotated else numbers


def _numbers(
    data: npt.NDArray[np.uint8], half: NumberFormat, int8_zero: int
) -> npt.NDArray[np.float32]:
    """The numbers, or codes, of cells in their order in memory, [..., count]."""
    data = np.ascontiguousarray(data)
    found: npt.NDArray[Any]
    match half.name:
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
