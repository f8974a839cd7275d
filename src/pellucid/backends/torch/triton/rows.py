"""Launches the kernels of norms, activations, rotations, of storing keys and values, and of the largest logits."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchDimensionKeys, TorchKVLayer, TorchRows
from pellucid.backends.torch.memory import indices
from pellucid.backends.torch.triton.kernels.codes import store_codes_kernel
from pellucid.backends.torch.triton.kernels.rows import (
    gated_kernel,
    heads_kernel,
    largest_kernel,
    peaks_kernel,
    rms_norm_kernel,
)
from pellucid.backends.torch.triton.pending import ForProducts, Pending, Sum, known
from pellucid.facts.kv_formats import NumberFormat
from pellucid.facts.model_config import Activation, RopeConfig

_NUMBERS_PER_WARP = 512
_MOST_WARPS = 8
_GATED_TOGETHER = 1024  # numbers of a row
_LOGITS_TOGETHER = 4096  # of a row
_PEAK_WARPS = 8


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> "Normed | Heads":
    """As `Ops.rms_norm`: x [T, M] or [T, heads, M]."""
    return (Normed if x.dim() == 2 else Heads)(x, weight, eps)


class Normed(ForProducts):
    """As `Ops.rms_norm`: x [T, M]. A sum is computed in the same launch."""

    def __init__(self, x: Tensor, weight: Tensor | None, eps: float) -> None:
        self._facts = x, weight, eps

    def launch(self, y: Tensor | None, planes: Tensor | None) -> None:
        x, weight, eps = self._facts
        if isinstance(x, Sum) and not x.is_known:
            terms = x.terms()
            sums = torch.empty(x.shape, device=x.device)
            x.know(sums)
            _launch_norm(y, planes, terms[0], weight, eps, (sums, terms[1]))
        else:
            _launch_norm(y, planes, known(x), weight, eps)


def _launch_norm(
    y: Tensor | None,
    planes: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    added: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Writes norms of x [T, M] or [T, heads, M].

    Args:
        y: in f32.
        planes: rounded, as of `linear.planes_of`.
        added: where sums go, and what is added to x: [T, M].
    """
    if x.numel() == 0:
        return
    own, heads, num_numbers = _with_whole_rows(x), x.shape[1] if x.dim() == 3 else 1, x.shape[-1]
    # What a launch has not is not read.
    sums, second = (own, own) if added is None else (added[0], added[1].contiguous())
    width = triton.next_power_of_2(num_numbers)
    rms_norm_kernel[(len(x) * heads,)](
        *(own if y is None else y, own if planes is None else planes, sums, own, second),
        *(own if weight is None else weight, eps, len(x) * heads, num_numbers, heads),
        *(own.stride(0), own.stride(-2) if own.dim() == 3 else 0),
        HAS_FLOATS=y is not None,
        PLANES=0 if planes is None else len(planes),
        HAS_SUMS=added is not None,
        HAS_WEIGHT=weight is not None,
        WIDTH=width,
        num_warps=min(_MOST_WARPS, max(1, width // _NUMBERS_PER_WARP)),
        enable_fp_fusion=False,
    )


class Gated(ForProducts):
    """As `Ops.gated_activate`: gate_up [T, 2 M]."""

    def __new__(cls, gate_up: Tensor, activation: Activation) -> Any:
        return super().__new__(cls, gate_up[:, : gate_up.shape[1] // 2])

    def __init__(self, gate_up: Tensor, activation: Activation) -> None:
        self._facts = gate_up, activation

    def launch(self, y: Tensor | None, planes: Tensor | None) -> None:
        gate_up, activation = known(self._facts[0]), self._facts[1]
        num_rows, num_numbers = self.shape
        if self.numel() == 0:
            return
        own = _with_whole_rows(gate_up)
        width = min(_GATED_TOGETHER, triton.next_power_of_2(num_numbers))
        gated_kernel[(num_rows, triton.cdiv(num_numbers, width))](
            *(own if y is None else y, own if planes is None else planes, own),
            *(num_rows, num_numbers, own.stride(0)),
            ACTIVATION=activation,
            HAS_FLOATS=y is not None,
            PLANES=0 if planes is None else len(planes),
            WIDTH=width,
            enable_fp_fusion=False,
        )


class Heads(Pending):
    """Queries or keys: heads [T, heads, D], normed if there is an `eps`, then rotated if there are `turns`."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor | None,
        eps: float | None,
        turns: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.x, self.weight, self.eps, self.turns = x, weight, eps, turns

    def rotated(self, turns: tuple[Tensor, Tensor]) -> "Heads":
        return Heads(self.x, self.weight, self.eps, turns)

    @property
    def joins(self) -> bool:
        """Whether `heads_kernel` norms as these heads are normed."""
        return not self.is_known and (self.eps is None or self.weight is not None)

    def compute(self) -> Tensor:
        y = torch.empty(self.shape, device=self.device)
        if self.turns is None:
            assert self.eps is not None
            _launch_norm(y, None, known(self.x), self.weight, self.eps)
        elif self.joins:
            _launch_heads(y, self, None)
        else:
            normed = Heads(self.x, self.weight, self.eps).value()
            _launch_heads(y, Heads(normed, None, None, self.turns), None)
        return y


def rotate(x: Tensor, batch: TorchBatch, config: RopeConfig) -> Heads:
    """As `Ops.rope`."""
    cos, sin = batch.rotation(config)
    if isinstance(x, Heads) and not x.is_known and x.turns is None:
        return x.rotated((cos, sin))
    return Heads(known(x), None, None, (cos, sin))


class _Stored(NamedTuple):
    """Keys and values for a launch of `heads_kernel`.

    Attributes:
        arrays: of the cache, of keys and of values.
        v: [T, K, D].
        slots: [T].
    """

    arrays: tuple[Tensor, Tensor]
    k: Heads
    v: Tensor
    slots: Tensor
    block_size: int


def _launch_heads(y: Tensor | None, q: Heads | None, stored: _Stored | None) -> None:
    """Computes y from q, and stores keys and values, which have as many tokens."""
    k = None if stored is None else stored.k
    first = k if q is None else q
    assert first is not None
    num_tokens, _, num_numbers = first.shape
    if first.numel() == 0:
        return
    own_q, own_k = (
        _with_whole_tokens(known((first if each is None else each).x)) for each in (q, k)
    )
    v = own_k if stored is None else _with_whole_tokens(stored.v)
    keys, values = (own_k, own_k) if stored is None else stored.arrays
    facts = []
    for each, x in ((q, own_q), (k, own_k)):
        cos, sin = (x, x) if each is None or each.turns is None else each.turns
        weight = x if each is None or each.weight is None else each.weight
        facts.append((weight, cos, sin, 0.0 if each is None or each.eps is None else each.eps))
    (q_weight, q_cos, q_sin, q_eps), (k_weight, k_cos, k_sin, k_eps) = facts
    q_heads = 0 if q is None else q.shape[1]
    kv_heads = 0 if k is None else k.shape[1]
    heads_kernel[(num_tokens, q_heads + 2 * kv_heads)](
        *(own_q if y is None else y, keys, values, own_q, own_k, v),
        q_cos if stored is None else stored.slots,
        *(q_weight, k_weight, q_cos, q_sin, k_cos, k_sin, q_eps, k_eps, num_numbers),
        *(q_cos.shape[-1], k_cos.shape[-1], q_heads, kv_heads),
        *(each.stride(0) for each in (own_q, own_k, v, keys, values)),
        HAS_KV=stored is not None,
        BLOCK_SIZE=1 if stored is None else stored.block_size,
        Q_NORM=q is not None and q.eps is not None,
        Q_ROPE=q is not None and q.turns is not None,
        K_NORM=k is not None and k.eps is not None,
        K_ROPE=k is not None and k.turns is not None,
        WIDTH=triton.next_power_of_2(num_numbers),
        num_warps=1,
        enable_fp_fusion=False,
    )


def find_largest(logits: Tensor) -> Tensor:
    """As `largest.find_largest`."""
    num_rows, num_tokens = logits.shape
    largest = torch.empty((2, num_rows), dtype=torch.int32, device=logits.device)
    if num_rows == 0:
        return largest
    own = _with_whole_rows(logits)
    width = min(_LOGITS_TOGETHER, triton.next_power_of_2(num_tokens))
    num_parts = triton.cdiv(num_tokens, width)
    peaks = torch.empty((num_rows, num_parts), dtype=torch.int64, device=logits.device)
    peaks_kernel[(num_rows, num_parts)](
        *(peaks, own, num_tokens, own.stride(0)), WIDTH=width, num_warps=_PEAK_WARPS
    )
    largest_kernel[(num_rows,)](
        *(largest, peaks, own.view(torch.int32), num_parts, num_rows, own.stride(0)),
        PARTS=triton.next_power_of_2(num_parts),
    )
    return largest


def store(
    kv_layer: TorchKVLayer, k: Tensor, v: Tensor, batch: TorchBatch, q: Tensor | None
) -> None:
    """As `Ops.store_kv`.

    Args:
        q: heads of the same step, which are computed in the same launch if they wait.
    """
    if len(k) == 0:
        return
    keys, values = kv_layer.k, kv_layer.v
    slots = indices(batch.slot_mapping, k.device)[kv_layer.group]
    size = kv_layer.block_size
    if isinstance(keys, TorchRows) and keys.format is None and values.format is None:
        own = k if isinstance(k, Heads) and k.joins else Heads(known(k), None, None)
        stored = _Stored((keys.arrays[0], values.arrays[0]), own, known(v), slots, size)
        if isinstance(q, Heads) and q.joins and q.shape[0] == len(k) and q.shape[2] == k.shape[2]:
            y = torch.empty(q.shape, device=q.device)
            _launch_heads(y, q, stored)
            q.know(y)
        else:
            _launch_heads(None, None, stored)
        return
    for half, x in ((keys, known(k)), (values, known(v))):
        if isinstance(half, TorchDimensionKeys):  # whole groups of positions become codes
            half.write((slots // size, slots % size), x, batch)
        elif half.format is None:
            half.write((slots // size, slots % size), x)
        else:
            _store_codes(half, half.format, x, slots, size)


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
