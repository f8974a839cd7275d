"""The ops in plain PyTorch, on any of its devices.

A row's bits must not depend on the other rows of its step. So no product has a shape that the step decides: rows go
through `linear` in tiles of one fixed size, as the columns of products; attention is in `torch.attention`. Everything
else is elementwise, and sums have an order of their own (`torch.arithmetic`). Products are in f32, and weights are
widened to f32 where they meet rows: matrices of codes and of bf16 stay as they are stored.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.backends.base import JoinedHandle
from pellucid.backends.ops import ForwardBatch, HostArray, IntArray, Ops
from pellucid.backends.row_table import TableInFile, embed_rows
from pellucid.backends.torch.arithmetic import (
    activate,
    capped,
    gated_activate,
    ordered_sum,
    sigmoid,
    softmax,
    softplus,
    unit,
)
from pellucid.backends.torch.attention import AttentionSizes, attend
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchKVLayer, TorchStateLayer
from pellucid.backends.torch.largest import find_largest
from pellucid.backends.torch.memory import indices, to_device, to_host
from pellucid.backends.torch.race import PLAIN_DRAWS, DrawKernels
from pellucid.backends.torch.weights import (
    TorchMatrix,
    TorchStack,
    TorchWeight,
    parts_of,
)
from pellucid.facts.model_config import (
    Activation,
    AttentionConfig,
    Gate,
    GatedDeltaNetConfig,
    RopeConfig,
    Router,
)


@dataclass(frozen=True)
class ProductSizes:
    """The shapes of products, on which bits depend.

    Args:
        tile: rows of a product in `linear`.
        attention: those of attention.
        num_together: rows of a step that go through a product of `linear` together; the others are zeros. 0: all.
    """

    tile: int
    attention: AttentionSizes
    num_together: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.tile, self.num_together or self.tile, *self.attention


class TorchOps(Ops):
    """The ops on tensors in f32.

    Args:
        device: of all tensors.
    """

    def __init__(self, device: torch.device, sizes: ProductSizes) -> None:
        self.device = device
        self.sizes = sizes

    @property
    def kernels(self) -> str:
        """What the bits of kernels of our own depend on; empty: there are none."""
        return ""

    @property
    def draws(self) -> DrawKernels:
        return PLAIN_DRAWS

    @property
    def parts_of_graphs(self) -> frozenset[str]:
        """ "attention", "experts", "recurrence": as far as these ops read on the device what a step is made of, so that
        a graph can hold them."""
        return frozenset()

    def attention_numbers(self, config: AttentionConfig) -> int:
        """An estimate of the numbers that exist at once in `paged_attention`, whatever the step."""
        return self.sizes.attention.num_numbers(
            config.num_heads, config.num_kv_heads, config.head_dim
        )

    def to_host(self, x: Tensor) -> HostArray:
        return to_host(x)

    def from_host(self, rows: HostArray) -> Tensor:
        return to_device(rows, self.device)

    def embed(
        self, token_ids: IntArray, table: TorchMatrix | TableInFile, scale: float = 1.0
    ) -> Tensor:
        if isinstance(table, TableInFile):
            return to_device(embed_rows(table.rows, token_ids, scale), self.device)
        return table.widened(indices(token_ids, self.device)) * scale

    def linear(self, x: Tensor, weight: TorchWeight) -> Tensor:
        if isinstance(weight, JoinedHandle):
            return torch.cat([self.linear(x, part) for part in weight.parts], dim=-1)
        num_rows, num_inputs = x.shape
        tile = self.sizes.tile
        together = self.sizes.num_together or tile
        num_tiles = -(-num_rows // together)
        if num_tiles == 0:
            return x.new_zeros((0, weight.shape[0]))
        tiles = x.new_zeros((num_tiles, tile, num_inputs))
        padded = torch.nn.functional.pad(x, (0, 0, 0, num_tiles * together - num_rows))
        tiles[:, :together] = padded.reshape(num_tiles, together, num_inputs)
        columns = []
        for rows in parts_of(weight):
            widened = weight.widened(rows)
            products = [torch.mm(widened, each.t())[:, :together] for each in tiles]
            columns.append(torch.cat(products, dim=1))
        y = torch.cat(columns)[:, :num_rows].t().contiguous()
        return y if weight.bias is None else y + weight.bias

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        normed = x / torch.sqrt(ordered_sum(x * x) / x.shape[-1] + eps)
        return normed if weight is None else normed * weight

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centered = x - ordered_sum(x) / x.shape[-1]
        variance = ordered_sum(centered * centered) / x.shape[-1]
        return centered / torch.sqrt(variance + eps) * weight + bias

    def rope(self, x: Tensor, batch: ForwardBatch, rope: RopeConfig) -> Tensor:
        cos, sin = TorchBatch.of(batch, self.device).rotation(rope)
        half = rope.dim // 2
        first, second, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        return activate(x, activation)

    def gated_activate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return gated_activate(gate_up, activation)

    def multiply(self, x: Tensor, gate: Tensor, function: Gate = "identity") -> Tensor:
        if function == "identity":
            return x * gate
        return x * (sigmoid(gate) if function == "sigmoid" else activate(gate, function))

    def scale(self, x: Tensor, factors: Tensor) -> Tensor:
        return x * factors

    def causal_convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state_layer: TorchStateLayer,
        batch: ForwardBatch,
        activation: Activation | None = None,
    ) -> Tensor:
        taps = weight.reshape(-1, x.shape[1])  # [K, C]
        outputs = []
        for rows, slot, is_first in self._requests(x, batch):
            before = state_layer.rows[slot]
            padded = torch.cat((torch.zeros_like(before) if is_first else before, rows))
            state_layer.rows[slot] = padded[len(rows) :]
            y = torch.zeros_like(rows) if bias is None else bias.expand(len(rows), -1)
            for k, factors in enumerate(taps):
                y = y + padded[k : k + len(rows)] * factors
            outputs.append(y)
        y = torch.cat(outputs)
        return y if activation is None else activate(y, activation)

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
        num_heads, keys, num_rows = net.num_value_heads, net.keys_width, len(qkv)
        q, k = (
            _repeated(unit(part.reshape(num_rows, net.num_key_heads, net.key_dim)), net)[..., None]
            for part in (qkv[:, :keys], qkv[:, keys : 2 * keys])
        )
        q = q * net.key_dim**-0.5
        v = qkv[:, 2 * keys :].reshape(num_rows, num_heads, net.value_dim)
        beta = sigmoid(b)[..., None]
        decay = torch.exp(log_decay * softplus(a + step_bias))[..., None, None]
        output = torch.empty_like(v)
        starts, counts = batch.query_start[:-1], np.diff(batch.query_start)
        for step in range(
            int(counts.max(initial=0))
        ):  # the next token of each request that has one
            own = np.flatnonzero(counts > step)
            rows = indices(starts[own] + step, self.device)
            slots = indices(batch.state_slots[own], self.device)
            matrices = state_layer.matrices[slots]  # [requests, Hv, dk, dv]
            if step == 0:
                is_first = indices(batch.positions[starts[own]], self.device) == 0
                matrices = torch.where(
                    is_first[:, None, None, None], matrices.new_zeros(()), matrices
                )
            matrices = matrices * decay[rows]
            error = v[rows] - ordered_sum(matrices * k[rows], dim=2)[:, :, 0]
            matrices = matrices + k[rows] * (beta[rows] * error)[:, :, None]
            output[rows] = ordered_sum(matrices * q[rows], dim=2)[:, :, 0]
            state_layer.matrices[slots] = matrices
        return output

    def route(
        self,
        logits: Tensor,
        num_chosen: int,
        router: Router,
        normalize: bool = False,
        scale: float = 1.0,
        bias: Tensor | None = None,
    ) -> Tensor:
        is_finite = torch.isfinite(logits).all(dim=-1, keepdim=True)
        logits = torch.where(is_finite, logits, torch.zeros_like(logits))
        scores = sigmoid(logits) if router == "sigmoid" else logits
        ranked = scores if bias is None else scores + bias
        # A stable sort of what is negated: of equal scores the lowest expert comes first.
        order = torch.argsort(-ranked, dim=-1, stable=True)
        is_chosen = torch.zeros_like(logits, dtype=torch.bool)
        is_chosen.scatter_(-1, order[:, :num_chosen], True)
        match router:
            case "softmax":
                scores = softmax(logits)
            case "softmax_chosen":
                scores = softmax(logits.masked_fill(~is_chosen, -torch.inf))
        weights = torch.where(is_chosen, scores, torch.zeros_like(scores))
        if normalize:
            weights = weights / ordered_sum(weights)
        return (weights * scale).masked_fill(is_chosen & ~is_finite, torch.nan)

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
        y = torch.zeros_like(x)
        is_used = (weights != 0).cpu().numpy()
        for expert in np.flatnonzero(is_used.any(axis=0)).tolist():
            rows = indices(np.flatnonzero(is_used[:, expert]), self.device)
            own = x[rows]
            gate_up = torch.cat(
                (self.linear(own, gate[expert]), self.linear(own, up[expert])), dim=1
            )
            inner = self.linear(gated_activate(gate_up, activation), down[expert])
            y[rows] = y[rows] + weights[rows, expert, None] * inner
        return y

    def store_kv(self, kv_layer: TorchKVLayer, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        kv_layer.write(k, v, TorchBatch.of(batch, self.device))

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
        step = TorchBatch.of(batch, self.device)
        num_rows = len(q)
        # One row more, of zeros: for positions of a tile that are not in the step.
        padded = torch.cat((q * scale, q.new_zeros((1, *q.shape[1:]))))
        output = torch.empty_like(padded)
        for tiles in step.tiles(self.sizes.attention.num_tiles):
            output[tiles.rows] = attend(
                padded[tiles.rows],
                tiles,
                step.tables[kv_layer.group][tiles.requests],
                kv_layer,
                self.sizes.attention.num_keys,
                sliding_window,
                softcap,
                sinks,
            )
        return output[:num_rows]

    def logits(self, x: Tensor, weight: TorchWeight, softcap: float | None = None) -> Tensor:
        return capped(self.linear(x, weight), softcap)

    def find_largest(self, logits: Tensor) -> Tensor:
        """As `largest.find_largest`."""
        return find_largest(logits)

    def _requests(self, x: Tensor, batch: ForwardBatch) -> Any:
        """Of each request its own of the rows, its slot, and whether its first row begins its text."""
        starts = batch.query_start
        return zip(
            x.split(np.diff(starts).tolist()),
            batch.state_slots.tolist(),
            (batch.positions[starts[:-1]] == 0).tolist(),
            strict=True,
        )


def _repeated(heads: Tensor, net: GatedDeltaNetConfig) -> Tensor:
    """[T, Hk, D] -> [T, Hv, D]: the k-head of each v-head."""
    times = net.num_value_heads // net.num_key_heads
    if net.tiled:
        return heads.repeat(1, times, 1)
    return heads.repeat_interleave(times, dim=1)
