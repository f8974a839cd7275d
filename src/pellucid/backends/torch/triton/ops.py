"""Ops whose kernels are in Triton, over those of plain PyTorch: for GPUs of CUDA.

Each op that a kernel replaces gives a row the same bits in every step. It may give other bits than plain PyTorch:
`identity` says what computes.
"""

import hashlib
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
import triton
from torch import Tensor

from pellucid.backends.base import JoinedHandle
from pellucid.backends.ops import ForwardBatch, IntArray
from pellucid.backends.row_table import TableInFile
from pellucid.backends.torch.arithmetic import activate
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.device import device_name
from pellucid.backends.torch.kv_cache import TorchKVLayer, TorchStateLayer
from pellucid.backends.torch.ops import ProductSizes, TorchOps
from pellucid.backends.torch.race import PLAIN_DRAWS, DrawKernels
from pellucid.backends.torch.triton.attention import (
    AttentionSizes,
    attend,
    partial_numbers,
    sizes_for,
    tile_of_step,
)
from pellucid.backends.torch.triton.draws import DRAW_KERNELS
from pellucid.backends.torch.triton.experts import GroupedExperts
from pellucid.backends.torch.triton.linear import LinearLaunch
from pellucid.backends.torch.triton.pending import Known, known
from pellucid.backends.torch.triton.recurrence import convolve, delta_net
from pellucid.backends.torch.triton.rows import Gated, Heads, find_largest, rms_norm, rotate, store
from pellucid.backends.torch.triton.tiles import ANY_CHIP, LinearTile, Tiles, tile_of_product
from pellucid.backends.torch.weights import TorchMatrix, TorchStack, TorchWeight
from pellucid.facts.model_config import Activation, AttentionConfig, GatedDeltaNetConfig, RopeConfig

KernelName: TypeAlias = Literal["linear", "attention", "rows", "experts", "recurrence", "draws"]
KERNELS: tuple[KernelName, ...] = ("linear", "attention", "rows", "experts", "recurrence", "draws")

_NOT_GROUPED = (
    "device='cuda': no kernel reads this format of experts (f32, f16, several formats, or codes that fill no words of"
    " 32 bits): plain PyTorch computes one expert after the other, which is slower, and no step is a graph"
)


@dataclass(frozen=True)
class KernelChoice:
    """Which kernels compute, and with which tiles.

    Args:
        used: ops of others are plain PyTorch. "rows" are norms, activations, rotations, storing keys and
            values, and finding the largest logits.
        attention: how ranges are shared out.
        tiles: "linear" and "experts" have the same.
    """

    used: frozenset[KernelName] = frozenset(KERNELS)
    attention: AttentionSizes = field(default_factory=AttentionSizes)
    tiles: Tiles = field(default_factory=lambda: Tiles.of(ANY_CHIP))

    @classmethod
    def of(cls, device: torch.device) -> "KernelChoice":
        return cls(attention=sizes_for(device), tiles=Tiles.of(device_name(device)))

    def only(self, *kernels: KernelName) -> "KernelChoice":
        return replace(self, used=frozenset(kernels))

    def tiles_of(self, has_codes: bool) -> tuple[LinearTile, ...]:
        return self.tiles.codes if has_codes else self.tiles.numbers

    def with_tile(self, tile: LinearTile) -> "KernelChoice":
        """All products have this tile."""
        return replace(self, tiles=self.tiles._replace(numbers=(tile,), codes=(tile,)))

    def with_one_tile(self, kernel: KernelName) -> "KernelChoice":
        """Steps of all lengths go through the first tile of this kernel."""
        match kernel:
            case "linear" | "experts":
                numbers, codes = self.tiles.numbers[:1], self.tiles.codes[:1]
                return replace(self, tiles=self.tiles._replace(numbers=numbers, codes=codes))
            case "attention":
                first = self.tiles.attention[:1]
                return replace(self, tiles=self.tiles._replace(attention=first))
        return self


class TritonOps(TorchOps):
    """`TorchOps` with kernels."""

    def __init__(
        self, device: torch.device, sizes: ProductSizes, choice: KernelChoice | None = None
    ) -> None:
        super().__init__(device, sizes)
        self.choice = KernelChoice.of(device) if choice is None else choice
        # Heads that wait: the kernel that stores keys computes the queries, which came before.
        self._queries: Callable[[], Heads | None] = lambda: None

    @property
    def kernels(self) -> str:
        choice = self.choice
        facts = sorted(choice.used), choice.attention.num_keys, choice.tiles
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        return f"triton {triton.__version__} {digest}"

    @property
    def draws(self) -> DrawKernels:
        return DRAW_KERNELS if "draws" in self.choice.used else PLAIN_DRAWS

    @property
    def parts_of_graphs(self) -> frozenset[str]:
        return self.choice.used

    def attention_numbers(self, config: AttentionConfig) -> int:
        if "attention" not in self.choice.used:
            return super().attention_numbers(config)
        choice = self.choice
        widest = max(each.rows for each in choice.tiles.attention)
        return partial_numbers(config, choice.attention, widest)

    def embed(
        self, token_ids: IntArray, table: TorchMatrix | TableInFile, scale: float = 1.0
    ) -> Tensor:
        return self._summed(super().embed(token_ids, table, scale))

    def received(self, batch: ForwardBatch, width: int) -> Tensor:
        return self._summed(super().received(batch, width))

    def _summed(self, x: Tensor) -> Tensor:
        """Rows to which layers add theirs, before norms."""
        return Known(x) if "rows" in self.choice.used else x

    def linear(self, x: Tensor, weight: TorchWeight) -> Tensor:
        if (
            "linear" not in self.choice.used
            or isinstance(weight, JoinedHandle)
            or (launch := LinearLaunch.of(weight)) is None
        ):
            return super().linear(known(x), weight)
        tiles = self.choice.tiles_of(launch.has_codes)
        y = launch.run(x, tile_of_product(len(x), launch.num_outputs, tiles))
        return y if weight.bias is None else y + weight.bias

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if "rows" not in self.choice.used:
            return super().rms_norm(x, weight, eps)
        return self._placed(rms_norm(x, weight, eps), x)

    def rope(self, x: Tensor, batch: ForwardBatch, rope: RopeConfig) -> Tensor:
        if "rows" not in self.choice.used:
            return super().rope(x, batch, rope)
        return self._placed(rotate(x, TorchBatch.of(batch, self.device), rope), x)

    def _placed(self, x: Tensor, before: Tensor) -> Tensor:
        """Heads x, made of `before`. Those of queries come first."""
        queries = self._queries()
        if isinstance(x, Heads) and (queries is None or queries is before or queries.is_known):
            self._queries = weakref.ref(x)
        return x

    def gated_activate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if "rows" not in self.choice.used:
            return super().gated_activate(gate_up, activation)
        return Gated(gate_up, activation)

    def find_largest(self, logits: Tensor) -> Tensor:
        return (find_largest if "rows" in self.choice.used else super().find_largest)(logits)

    def expert_mlp(
        self,
        x: Tensor,
        weights: Tensor,
        num_chosen: int,
        gate: TorchStack,
        up: TorchStack,
        down: TorchStack,
        activation: Activation,
    ) -> Tensor:
        if "experts" not in self.choice.used or len(x) == 0:
            return super().expert_mlp(x, weights, num_chosen, gate, up, down, activation)
        experts = GroupedExperts.of(gate, up, down)
        if experts is None:
            warnings.warn(_NOT_GROUPED, RuntimeWarning, stacklevel=2)
            return super().expert_mlp(x, weights, num_chosen, gate, up, down, activation)
        # On average as many rows meet an expert.
        num_rows = len(x) * num_chosen / weights.shape[1]
        tiles = self.choice.tiles_of(experts.has_codes)
        tile = tile_of_product(num_rows, experts.num_outputs(len(x) * num_chosen), tiles)
        return experts.run(x, weights, num_chosen, activation, tile)

    def causal_convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state_layer: TorchStateLayer,
        batch: ForwardBatch,
        activation: Activation | None = None,
    ) -> Tensor:
        if "recurrence" not in self.choice.used:
            return super().causal_convolution(x, weight, bias, state_layer, batch, activation)
        step, is_silu = TorchBatch.of(batch, self.device), activation == "silu"
        y = convolve(x, weight, bias, state_layer, step, is_silu)
        return y if activation is None or is_silu else activate(y, activation)

    def gated_delta_net(
        self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        log_decay: Tensor,
        step_bias: Tensor,
        net: GatedDeltaNetConfig,
        state_layer: TorchStateLayer,
        batch: ForwardBatch,
    ) -> Tensor:
        facts = qkv, b, a, log_decay, step_bias, net, state_layer
        if "recurrence" not in self.choice.used:
            return super().gated_delta_net(*facts, batch)
        return delta_net(*facts, TorchBatch.of(batch, self.device))

    def store_kv(self, kv_layer: TorchKVLayer, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        step = TorchBatch.of(batch, self.device)
        if "rows" in self.choice.used:
            store(kv_layer, k, v, step, self._queries())
        else:
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
        tile = tile_of_step(step, kv_layer, heads, self.choice.tiles.attention)
        facts = scale, sliding_window, softcap, sinks
        return attend(known(q), kv_layer, step, *facts, tile, self.choice.attention)
