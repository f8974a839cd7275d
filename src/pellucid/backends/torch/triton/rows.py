"""Launches the kernels of norms, rotations, and of storing keys and values."""

import torch
import triton
from torch import Tensor

from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchKVLayer, TorchRows
from pellucid.backends.torch.memory import indices
from pellucid.backends.torch.triton.kernels.rows import (
    rms_norm_kernel,
    rope_kernel,
    store_kernel,
)
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


def store(kv_layer: TorchKVLayer, k: Tensor, v: Tensor, batch: TorchBatch) -> bool:
    """As `Ops.store_kv`, where keys and values are floats. False: nothing is stored."""
    halves = kv_layer.k, kv_layer.v
    if any(not isinstance(each, TorchRows) or each.format is not None for each in halves):
        return False
    keys, values = (each.arrays[0] for each in halves if isinstance(each, TorchRows))
    num_tokens, num_numbers = len(k), k.shape[1] * k.shape[2]
    if num_tokens == 0:
        return True
    k, v = (x if x[0].is_contiguous() else x.contiguous() for x in (k, v))
    slots = indices(batch.slot_mapping, k.device)[kv_layer.group]
    store_kernel[(num_tokens, triton.cdiv(num_numbers, _STORED_TOGETHER))](
        *(keys, values, k, v, slots, num_numbers),
        *(each.stride(0) for each in (keys, values, k, v)),
        BLOCK_SIZE=kv_layer.block_size,
        WIDTH=min(_STORED_TOGETHER, triton.next_power_of_2(num_numbers)),
        enable_fp_fusion=False,
    )
    return True


def _with_whole_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
