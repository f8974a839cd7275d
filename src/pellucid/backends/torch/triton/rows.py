"""Launches the kernels of norms, rotations, and of storing keys and values."""

from typing import Any

import torch
import triton
from torch import Tensor

from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchDimensionKeys, TorchKVLayer, TorchRows
from pellucid.backends.torch.memory import indices
from pellucid.backends.torch.triton.kernels.codes import store_codes_kernel
from pellucid.backends.torch.triton.kernels.rows import (
    rms_norm_kernel,
    rope_kernel,
    store_kernel,
)
from pellucid.facts.kv_formats import NumberFormat
from pellucid.facts.model_config import RopeConfig

_STORED_TOGETHER = 1024  # numbers of a token
_NUMBERS_PER_WARP = 512
_MOST_WARPS = 8


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """As `Ops.rms_norm`: x [T, M] or [T, heads, M]."""
    y = torch.empty(x.shape, device=x.device)
    if x.numel() == 0:
        return y
    own, heads, num_numbers = _with_whole_rows(x), x.shape[1] if x.dim() == 3 else 1, x.shape[-1]
    width = triton.next_power_of_2(num_numbers)
    rms_norm_kernel[(len(x) * heads,)](
        *(y, own, own if weight is None else weight, eps, num_numbers, heads),
        *(own.stride(0), own.stride(-2) if own.dim() == 3 else 0),
        HAS_WEIGHT=weight is not None,
        WIDTH=width,
        num_warps=min(_MOST_WARPS, max(1, width // _NUMBERS_PER_WARP)),
        enable_fp_fusion=False,
    )
    return y


def rotate(x: Tensor, batch: TorchBatch, config: RopeConfig) -> Tensor:
    """As `Ops.rope`."""
    num_tokens, heads, num_numbers = x.shape
    y = torch.empty(x.shape, device=x.device)
    if x.numel() == 0:
        return y
    own, half = _with_whole_rows(x), config.dim // 2
    rest = num_numbers - 2 * half
    cos, sin = batch.rotation(config)
    rope_kernel[(num_tokens * heads,)](
        *(y, own, cos, sin, num_numbers, half, heads, own.stride(0), own.stride(1)),
        WIDTH=triton.next_power_of_2(half),
        REST=triton.next_power_of_2(rest) if rest else 0,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return y


def store(kv_layer: TorchKVLayer, k: Tensor, v: Tensor, batch: TorchBatch) -> None:
    """As `Ops.store_kv`."""
    if len(k) == 0:
        return
    keys, values = kv_layer.k, kv_layer.v
    slots = indices(batch.slot_mapping, k.device)[kv_layer.group]
    size = kv_layer.block_size
    if isinstance(keys, TorchRows) and keys.format is None and values.format is None:
        _store_floats((keys, values), k, v, slots, size)
        return
    for half, x in ((keys, k), (values, v)):
        if isinstance(half, TorchDimensionKeys):  # whole groups of positions become codes
            half.write((slots // size, slots % size), x, batch)
        elif half.format is None:
            half.write((slots // size, slots % size), x)
        else:
            _store_codes(half, half.format, x, slots, size)


def _store_floats(
    halves: tuple[TorchRows, TorchRows], k: Tensor, v: Tensor, slots: Tensor, block_size: int
) -> None:
    keys, values = (each.arrays[0] for each in halves)
    num_tokens, num_numbers = len(k), k.shape[1] * k.shape[2]
    k, v = _with_whole_tokens(k), _with_whole_tokens(v)
    store_kernel[(num_tokens, triton.cdiv(num_numbers, _STORED_TOGETHER))](
        *(keys, values, k, v, slots, num_numbers),
        *(each.stride(0) for each in (keys, values, k, v)),
        BLOCK_SIZE=block_size,
        WIDTH=min(_STORED_TOGETHER, triton.next_power_of_2(num_numbers)),
        enable_fp_fusion=False,
    )


def _store_codes(
    half: TorchRows, number_format: NumberFormat, x: Tensor, slots: Tensor, block_size: int
) -> None:
    x = _with_whole_tokens(x)
    num_tokens, num_heads, _ = x.shape
    codes, scales = half.arrays
    store_codes_kernel[(num_tokens, num_heads)](
        *(codes, scales, x, slots, num_heads),
        *(each.stride(0) for each in (x, codes, scales)),
        **code_constants(number_format, half.head_dim, block_size),
        num_warps=1,
        enable_fp_fusion=False,
    )


def code_constants(number_format: NumberFormat, head_dim: int, block_size: int) -> dict[str, Any]:
    """The constants of `store_codes_kernel`."""
    numbers = number_format.num_numbers(head_dim)
    num_groups = number_format.num_groups(head_dim)
    return {
        "HEAD_DIM": head_dim,
        "NUMBERS": numbers,
        "NUM_GROUPS": num_groups,
        "BITS": number_format.bits,
        "IS_ROTATED": number_format.is_rotated,
        "BLOCK_SIZE": block_size,
        "GROUPS": triton.next_power_of_2(num_groups),
        "SIZE": triton.next_power_of_2(numbers // num_groups),
    }


def _with_whole_tokens(x: Tensor) -> Tensor:
    return x if x[0].is_contiguous() else x.contiguous()


def _with_whole_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
