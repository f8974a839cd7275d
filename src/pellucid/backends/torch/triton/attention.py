"""Launches the kernels of paged attention, over caches of every format."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from pellucid.backends.numpy.kv_codes import ROTATE_BACK
from pellucid.backends.ops import ForwardBatch
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchDimensionKeys, TorchKVLayer, TorchRows
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.triton.attention_plan import (
    NUM_COLUMNS,
    AttentionPlan,
    plan_attention,
)
from pellucid.backends.torch.triton.kernels.attention import (
    attention_kernel,
    fold_kernel,
    rotation_kernel,
)
from pellucid.backends.torch.triton.tiles import AttentionTile, tile_for
from pellucid.facts.kv_formats import GROUP_DIMS, GROUP_POSITIONS
from pellucid.facts.model_config import AttentionConfig

_KEYS = 64  # of a step within a range
_KEYS_OF_F32 = 32  # products of f32 have no tensor cores, and take registers
_LEAST_WIDTH = 16  # of an operand of a product
_UNBOUNDED = 1 << 30  # a window that hides nothing
_ALIGNMENT = _HEADER = 4  # int32
_ROTATED_ROWS = 16
_ROWS_OF_FOLD_WARP = 8


class AttentionSizes(NamedTuple):
    """What the bits of attention do not depend on, but for `num_keys`.

    Attributes:
        num_keys: of a range.
        num_programs: that compute at the same time.
        most_partials: results of ranges in scratch memory, for each kv-head.
    """

    num_keys: int = 512
    num_programs: int = 8
    most_partials: int = 1024


def sizes_for(device: torch.device) -> AttentionSizes:
    """Two programs for each processor of a GPU."""
    if device.type != "cuda":
        return AttentionSizes()
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return AttentionSizes(num_programs=2 * processors)


def partial_numbers(config: AttentionConfig, sizes: AttentionSizes, rows: int) -> int:
    """Of the results of ranges in scratch memory, at most, with tiles of `rows`."""
    facts = 2  # maximum and total
    return sizes.most_partials * config.num_kv_heads * rows * (_width(config.head_dim, 1) + facts)


class _Half(NamedTuple):
    """Keys or values as arguments of the kernels.

    Attributes:
        form: "floats", "bytes", "halves" or "dimensions".
        numbers: of a head as it is stored.
        group: columns of a plane that share a factor.
        num_factors: of a position's head.
        factors: those of codes; else the numbers again, which are not read.
    """

    form: str
    numbers: int
    planes: int
    group: int
    num_factors: int
    is_rotated: bool
    stored: Tensor
    factors: Tensor

    @classmethod
    def of(cls, half: TorchRows | TorchDimensionKeys) -> "_Half":
        if isinstance(half, TorchDimensionKeys):
            numbers = 2 * half.codes.shape[-1]
            return cls("dimensions", numbers, 2, 1, 0, False, half.codes, half.factors)
        head_dim = half.head_dim
        if half.format is None:
            (stored,) = half.arrays
            return cls("floats", head_dim, 1, 1, 0, False, stored, stored)
        codes, factors = half.arrays
        numbers, num_groups = half.format.num_numbers(head_dim), factors.shape[-1]
        planes = 2 if half.format.bits == 4 else 1
        group = GROUP_DIMS // planes if num_groups > 1 else _width(numbers, planes)
        form = "halves" if planes == 2 else "bytes"
        return cls(form, numbers, planes, group, num_groups, half.format.is_rotated, codes, factors)

    @property
    def width(self) -> int:
        return _width(self.numbers, self.planes)

    def constants(self, name: str) -> dict[str, Any]:
        return {
            f"{name}_FORMAT": self.form,
            f"{name}_NUMBERS": self.numbers,
            f"{name}_GROUP": self.group,
            f"{name}_PLANES": self.planes,
            f"{name}_WIDTH": self.width,
            f"NUM_{name}_FACTORS": self.num_factors,
        }


def _width(numbers: int, planes: int) -> int:
    """Columns of a plane, a power of 2."""
    return max(_LEAST_WIDTH, int(triton.next_power_of_2(-(-numbers // planes))))


def attention_constants(
    kv_layer: TorchKVLayer, heads: int, head_dim: int, num_keys: int, softcap: bool, sinks: bool
) -> dict[str, Any]:
    """The constants of `attention_kernel` but for its tile.

    Args:
        heads: query heads of a kv-head.
        num_keys: of a range.
    """
    k, v = _Half.of(kv_layer.k), _Half.of(kv_layer.v)
    is_f32 = k.stored.dtype == torch.float32
    step = min(_KEYS_OF_F32 if is_f32 else _KEYS, num_keys)
    return {
        "HEADS": heads,
        "BLOCK_SIZE": kv_layer.block_size,
        "QUERY_NUMBERS": k.numbers if k.is_rotated else head_dim,
        **k.constants("KEY"),
        **v.constants("VALUE"),
        "HAS_SINKS": sinks,
        "HAS_SOFTCAP": softcap,
        "TYPE": tl.float32 if is_f32 else tl.bfloat16,
        "RANGE": num_keys,
        "KEYS": step,
        "LOG_KEYS": int(math.log2(step)),
        "GROUP_POSITIONS": GROUP_POSITIONS,
        "COLUMNS": NUM_COLUMNS,
    }


_OF_FOLD = ("HEADS", "VALUE_NUMBERS", "VALUE_PLANES", "VALUE_WIDTH", "HAS_SINKS", "COLUMNS")


@dataclass(frozen=True)
class AttentionWork:
    """An `AttentionPlan` on the device: a `StepPlan`.

    Args:
        make: the plan of a step.
        tiles_per_row: of a request with one row.
        most_partials: as of `AttentionSizes`.
        num_items, num_folds: for which there is room.
        num_partials: likewise.
        numbers: int32: how many items and folds there are, and two zeros; items; folds.
    """

    make: Callable[[ForwardBatch], AttentionPlan]
    tiles_per_row: int
    most_partials: int
    num_items: int
    num_folds: int
    num_partials: int
    numbers: Tensor | None = None

    @classmethod
    def of(
        cls,
        batch: TorchBatch,
        make: Callable[[ForwardBatch], AttentionPlan],
        tiles_per_row: int,
        most_partials: int,
    ) -> "AttentionWork":
        plan = make(batch)
        # An address that is a multiple of 16 bytes for one step and none for another is another kernel for Triton.
        num_items = -(-len(plan.items) // _ALIGNMENT) * _ALIGNMENT
        sizes = num_items, len(plan.folds), plan.num_partials
        work = cls(make, tiles_per_row, most_partials, *sizes)
        return work.over(to_device(work._packed(plan), batch.device))

    def for_rows(self, num_rows: int) -> "AttentionWork":
        tiles, partials = num_rows * self.tiles_per_row, self.most_partials
        return replace(
            self,
            num_items=-(-(tiles + partials) // _ALIGNMENT) * _ALIGNMENT,
            num_folds=tiles,
            num_partials=partials,
            numbers=None,
        )

    def numbers_of(self, batch: ForwardBatch) -> npt.NDArray[np.int32]:
        return self._packed(self.make(batch))

    def over(self, numbers: Tensor) -> "AttentionWork":
        return replace(self, numbers=numbers)

    def _packed(self, plan: AttentionPlan) -> npt.NDArray[np.int32]:
        numbers = np.zeros(_HEADER + (self.num_items + self.num_folds) * NUM_COLUMNS, np.int32)
        numbers[:2] = len(plan.items), len(plan.folds)
        starts = _HEADER, _HEADER + self.num_items * NUM_COLUMNS
        for start, table in zip(starts, (plan.items, plan.folds), strict=True):
            numbers[start : start + table.size] = table.ravel()
        return numbers

    @property
    def items(self) -> tuple[Tensor, Tensor]:
        """How many there are [1], and their table."""
        assert self.numbers is not None
        return self.numbers[:1], self.numbers[_HEADER:]

    @property
    def folds(self) -> tuple[Tensor, Tensor]:
        assert self.numbers is not None
        return self.numbers[1:2], self.numbers[_HEADER + self.num_items * NUM_COLUMNS :]


def _planned(
    batch: TorchBatch,
    kv_layer: TorchKVLayer,
    heads: int,
    window: int | None,
    tile: AttentionTile,
    sizes: AttentionSizes,
) -> AttentionWork:
    """Made once for all layers of a step that ask alike."""
    num_kv_heads, open_keys = kv_layer.num_kv_heads, kv_layer.open_keys
    key = "attention", heads, num_kv_heads, window, tile.rows, sizes, open_keys is not None
    if key not in batch.plans:
        shares = sizes.num_programs / num_kv_heads
        facts = heads, tile.rows, sizes.num_keys, window, shares, sizes.most_partials

        def make(step: ForwardBatch) -> AttentionPlan:
            groups = None if open_keys is None else open_keys.first_groups(step)
            return plan_attention(step, *facts, groups)

        tiles_per_row = triton.cdiv(heads, tile.rows)
        batch.plans[key] = AttentionWork.of(batch, make, tiles_per_row, sizes.most_partials)
    found = batch.plans[key]
    assert isinstance(found, AttentionWork)
    return found


def tile_of_step(
    batch: TorchBatch, kv_layer: TorchKVLayer, heads: int, tiles: tuple[AttentionTile, ...]
) -> AttentionTile:
    """The tile of a step; heads: query heads of a kv-head."""
    if any(_Half.of(half).form != "floats" for half in (kv_layer.k, kv_layer.v)):
        tiles = tiles[:1]  # codes that become bf16 leave no registers for more rows
    most = int(np.diff(batch.query_start).max(initial=0)) * heads
    return tile_for(most, tiles)


def attend(
    q: Tensor,
    kv_layer: TorchKVLayer,
    batch: TorchBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    tile: AttentionTile,
    sizes: AttentionSizes,
) -> Tensor:
    """As `Ops.paged_attention`."""
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = kv_layer.num_kv_heads
    heads = num_heads // num_kv_heads
    k, v = _Half.of(kv_layer.k), _Half.of(kv_layer.v)
    plan = _planned(batch, kv_layer, heads, window, tile, sizes)
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    if k.is_rotated:
        q = rotated(q, k.numbers)
    output = q.new_empty((num_rows, num_heads, v.numbers))
    shape = plan.num_partials, num_kv_heads
    partial_values = q.new_empty((*shape, v.planes, tile.rows, v.width))
    partial_facts = q.new_empty((*shape, 2, tile.rows))
    constants = attention_constants(
        kv_layer, heads, head_dim, sizes.num_keys, softcap is not None, sinks is not None
    )
    own_sinks = q if sinks is None else sinks  # what is not there is not read
    open_keys = k.stored
    if kv_layer.open_keys is not None:
        assert kv_layer.open_keys.area.keys is not None
        open_keys = kv_layer.open_keys.area.keys
    options = {"num_warps": tile.num_warps, "enable_fp_fusion": False}
    attention_kernel[(sizes.num_programs,)](
        *(output, partial_values, partial_facts, q, own_sinks, *plan.items),
        batch.tables[kv_layer.group],
        *(k.stored, k.factors, v.stored, v.factors, open_keys),
        scale,
        1.0 if softcap is None else softcap,
        _UNBOUNDED if window is None else window,
        q.stride(0),
        batch.tables.shape[2],
        num_kv_heads,
        *(each.stride(0) for each in (k.stored, k.factors, v.stored, v.factors)),
        **constants,
        ROWS=tile.rows,
        num_stages=tile.num_stages,
        **options,
    )
    if plan.num_partials:
        fold_kernel[(sizes.num_programs,)](
            *(output, partial_values, partial_facts, own_sinks, *plan.folds),
            num_kv_heads,
            **{name: constants[name] for name in _OF_FOLD},
            ROWS=tile.rows,
            **options | {"num_warps": min(16, max(4, tile.rows // _ROWS_OF_FOLD_WARP))},
        )
    return rotated(output, head_dim) if v.is_rotated else output


def rotated(x: Tensor, numbers: int) -> Tensor:
    """Heads [T, H, D] -> [T, H, numbers], as `numpy.kv_codes.rotate` with the factor of the way back; D or `numbers` is
    a multiple of 32."""
    num_rows, num_heads, own = x.shape
    y = x.new_empty((num_rows, num_heads, numbers))
    groups = triton.next_power_of_2(triton.cdiv(max(own, numbers), GROUP_DIMS))
    rotation_kernel[(triton.cdiv(num_rows * num_heads, _ROTATED_ROWS),)](
        *(y, x, num_rows * num_heads, num_heads, x.stride(0)),
        FACTOR=float(ROTATE_BACK),
        X_NUMBERS=own,
        Y_NUMBERS=numbers,
        GROUPS=groups,
        ROWS=_ROTATED_ROWS,
        enable_fp_fusion=False,
    )
    return y
