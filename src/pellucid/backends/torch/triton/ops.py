"""Ops whose kernels are in Triton, over those of plain PyTorch: for GPUs of CUDA.

Each op that a kernel replaces gives a row the same bits in every step. It may give other bits than plain PyTorch:
`identity` says what computes.
"""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
import triton
from torch import Tensor

from pellucid.backends.base import JoinedHandle
from pellucid.backends.ops import ForwardBatch
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchKVLayer
from pellucid.backends.torch.ops import ProductSizes, TorchOps
from pellucid.backends.torch.triton.attention import (
    ATTENTION_TILES,
    AttentionSizes,
    AttentionTile,
    attend,
    partial_numbers,
    sizes_for,
    tile_for,
)
from pellucid.backends.torch.triton.linear import (
    TILES_OF_CODES,
    TILES_OF_NUMBERS,
    LinearLaunch,
    LinearTile,
)
from pellucid.backends.torch.triton.rows import rms_norm, rotate, store
from pellucid.backends.torch.weights import TorchWeight
from pellucid.facts.model_config import AttentionConfig, RopeConfig

KernelName: TypeAlias = Literal["linear", "attention", "rows"]
KERNELS: tuple[KernelName, ...] = ("linear", "attention", "rows")


@dataclass(frozen=True)
class KernelChoice:
    """Which kernels compute, and with which tiles.

    Args:
        used: ops of others are plain PyTorch. "rows" are norms, rotations, and storing keys and values.
        attention: how ranges are shared out.
        tiles_of_numbers, tiles_of_codes, attention_tiles: by the rows of a step, in ascending order.
    """

    used: frozenset[KernelName] = frozenset(KERNELS)
    attention: AttentionSizes = field(default_factory=AttentionSizes)
    tiles_of_numbers: tuple[LinearTile, ...] = TILES_OF_NUMBERS
    tiles_of_codes: tuple[LinearTile, ...] = TILES_OF_CODES
    attention_tiles: tuple[AttentionTile, ...] = ATTENTION_TILES

    @classmethod
    def of(cls, device: torch.device) -> "KernelChoice":
        return cls(attention=sizes_for(device))

    def only(self, *kernels: KernelName) -> "KernelChoice":
        return replace(self, used=frozenset(kernels))

    def with_one_tile(self, kernel: KernelName) -> "KernelChoice":
        """Steps of all lengths go through the first tile of this kernel."""
        match kernel:
            case "linear":
                numbers, codes = self.tiles_of_numbers[:1], self.tiles_of_codes[:1]
                return replace(self, tiles_of_numbers=numbers, tiles_of_codes=codes)
            case "attention":
                return replace(self, attention_tiles=self.attention_tiles[:1])
        return self


class TritonOps(TorchOps):
    """`TorchOps` with kernels."""

    def __init__(
        self, device: torch.device, sizes: ProductSizes, choice: KernelChoice | None = None
    ) -> None:
        super().__init__(device, sizes)
        self.choice = KernelChoice.of(device) if choice is None else choice

    @property
    def kernels(self) -> str:
        choice = self.choice
        facts = sorted(choice.used), choice.attention.num_keys, choice.tiles_of_numbers
        facts_of_tiles = choice.tiles_of_codes, choice.attention_tiles
        digest = hashlib.sha256(repr((facts, facts_of_tiles)).encode()).hexdigest()[:16]
        return f"triton {triton.__version__} {digest}"

    @property
    def has_work_lists(self) -> bool:
        return self.device.type == "cuda" and "attention" in self.choice.used

    def attention_numbers(self, config: AttentionConfig) -> int:
        if "attention" not in self.choice.used:
            return super().attention_numbers(config)
        choice = self.choice
        widest = max(each.rows for each in choice.attention_tiles)
        return partial_numbers(config, choice.attention, widest)

    def linear(self, x: Tensor, weight: TorchWeight) -> Tensor:
        if (
            "linear" not in self.choice.used
            or isinstance(weight, JoinedHandle)
            or (launch := LinearLaunch.of(weight)) is None
        ):
            return super().linear(x, weight)
        choice = self.choice
        tiles = choice.tiles_of_codes if launch.has_codes else choice.tiles_of_numbers
        y = launch.run(x, next((each for each in tiles if len(x) <= each.most_rows), tiles[-1]))
        return y if weight.bias is None else y + weight.bias

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if "rows" not in self.choice.used:
            return super().rms_norm(x, weight, eps)
        return rms_norm(x, weight, eps)

    def rope(self, x: Tensor, batch: ForwardBatch, rope: RopeConfig) -> Tensor:
        if "rows" not in self.choice.used:
            return super().rope(x, batch, rope)
        return rotate(x, TorchBatch.of(batch, self.device), rope)

    def store_kv(self, kv_layer: TorchKVLayer, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        step = TorchBatch.of(batch, self.device)
        if "rows" not in self.choice.used or not store(kv_layer, k, v, step):
            super().store_kv(kv_layer, k, v, step)

    def paged_attention(
        self,
        q: Tensor,
        kv_layer: TorchKVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if "attention" not in self.choice.used:
            return super().paged_attention(
                q, kv_layer, batch, scale, sliding_window, softcap, sinks
            )
        step = TorchBatch.of(batch, self.device)
        heads = q.shape[1] // kv_layer.num_kv_heads
        tile = tile_for(step, kv_layer, heads, self.choice.attention_tiles)
        facts = scale, sliding_window, softcap, sinks
        return attend(q, kv_layer, step, *facts, tile, self.choice.attention)
