"""The ops contract: the functions that a decoder may call on arrays of T tokens, and the forward batch.

Letters in shapes: T tokens of the step, B requests, R rows whose logits are needed, G groups of layers that
share block tables, H query heads, K kv-heads, D head dim, E experts, V vocabulary. Decoders use `+`, slicing and
`.reshape`; everything else is an op. Every op computes each row the same way whatever other rows are in the step:
this makes a request's answer independent of its batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.facts.model_config import Activation, Gate, GatedDeltaNetConfig, RopeConfig, Router

HostArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
BlockBytes: TypeAlias = npt.NDArray[np.uint8]  # [bytes_per_block]

# Handles are opaque outside the backend that made them, so neither formats nor devices show in a decoder.
Array: TypeAlias = Annotated[Any, "[T, ...]: `+`, slices and `reshape`; all else is an op"]
Matrix: TypeAlias = Any
MatrixStack: TypeAlias = Any  # one matrix per expert
Vector: TypeAlias = Any
KVLayer: TypeAlias = Any
StateLayer: TypeAlias = Any


@dataclass(frozen=True)
class ForwardBatch:
    """The arrays of one step: a ragged batch in which each request contributes q_len >= 1 rows."""

    token_ids: IntArray  # [T]
    positions: IntArray  # [T] index of the token in its request
    rope_lens: IntArray  # [T] max(prompt length, position + 1), for scalings that depend on length
    slot_mapping: IntArray  # [G, T] block_id * block_size + offset, where the token's K and V go
    query_start: IntArray  # [B + 1] rows of request b are query_start[b] .. query_start[b + 1]
    seq_lens: IntArray  # [B] positions in the cache once this step has stored its own
    block_tables: IntArray  # [G, B, blocks of the longest], -1: no block, or one out of the window
    logits_indices: IntArray  # [R] rows of T
    state_slots: (
        IntArray  # [B] where a request's recurrent states and open keys are; not read without them
    )
    # [T, hidden] what the part of the model before this one has computed; of the first part None
    received: "RowSource | None" = field(default=None, kw_only=True)

    def logits_batch(self) -> "ForwardBatch":
        """The rows `logits_indices` as a batch: each is the only row of a request, and has logits."""
        rows = self.logits_indices
        requests = np.searchsorted(self.query_start, rows, side="right") - 1
        num_later = self.query_start[requests + 1] - rows - 1
        return ForwardBatch(
            token_ids=self.token_ids[rows],
            positions=self.positions[rows],
            rope_lens=self.rope_lens[rows],
            slot_mapping=self.slot_mapping[:, rows],
            query_start=np.arange(len(rows) + 1),
            seq_lens=self.seq_lens[requests] - num_later,
            block_tables=self.block_tables[:, requests],
            logits_indices=np.arange(len(rows)),
            state_slots=self.state_slots[requests],
        )


class RowSource(Protocol):
    """Rows [T, M] of f32: an array, or rows that another process is still computing."""

    def __getitem__(self, rows: slice, /) -> HostArray: ...


class KVCache(Protocol):
    """The arrays of blocks, and of slots of recurrent states and open keys, one handle per layer. Only ops read
    inside a block or a slot; all other code moves whole ones. A block holds keys and values of the layers of one
    group (`kv_groups.py`). Open keys are those of a sequence's two latest groups of positions, in bf16, group g
    in place g % 2 (`KVFormat.open_positions`)."""

    @property
    def layers(self) -> Sequence[KVLayer | StateLayer]: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def bytes_per_block(self) -> int:
        """K and V of the layers of a group, scales and padding included."""
        ...

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        """Copies states and open keys of all layers from slot `source_slot` to slot `target_slot`."""
        ...

    @property
    def bytes_per_state(self) -> int:
        """Of the recurrent states and open keys of one sequence in all layers; 0: there are none."""
        ...

    def read_state(self, slot: int) -> BlockBytes:
        """A copy of the contents of a slot, [bytes_per_state]: states, then open keys."""
        ...

    def write_state(self, slot: int, data: BlockBytes) -> None:
        """Writes the result of `read_state` into a slot, bit for bit."""
        ...

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copies each block `source_ids[i]` to block `target_ids[i]`. Targets differ, and no target is the source
        of a later copy."""
        ...

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        """Copies of the contents of blocks, [bytes_per_block] each. Only a cache of the same model, format, block
        size and backend can use them."""
        ...

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        """Writes results of `read_blocks` into blocks, which differ, bit for bit.

        Args:
            contents: [bytes_per_block] each; may be read-only.
        """
        ...

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        """Keys and values [block_size, K, D] of one layer, as attention reads them. From any thread.

        Args:
            data: of `read_blocks`, for a block of the layer's group. Keys of a group that is not complete are any
                numbers: `read_open_keys` has them.
        """
        ...

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        """Keys [32, K, D] of the positions from 32 `group` on, as the slot has them for one layer: those of one of
        the sequence's two latest groups. f32."""
        ...


@dataclass(frozen=True)
class Weight:
    """A weight that a decoder asks for. `Parameters` has a method for each kind, which says what it is.

    Args:
        kind: the method.
        name: pellucid's ("layers.0.qkv_proj"); that of a vector ends in ".weight" or ".bias".
        shape: of its numbers.
        has_bias: whether `name`.bias belongs to it, with a number for each row.
        parts: rows of each of the matrices that it joins, which checkpoints may store separately; none: it is one.
        factor: multiplies the numbers.
    """

    kind: Literal["matrix", "router", "experts", "table", "vector", "convolution"]
    name: str
    shape: tuple[int, ...]
    has_bias: bool = False
    parts: tuple[int, ...] = ()
    factor: float = 1.0

    @property
    def numbers(self) -> str:
        """The name of its numbers: it ends in ".weight" or ".bias"."""
        return self.name if self.kind == "vector" else f"{self.name}.weight"

    @property
    def bias(self) -> "Weight":
        """Its bias; of `experts`, that of each expert."""
        return Weight("vector", f"{self.name}.bias", self.shape[:-1], parts=self.parts)

    @property
    def matrices(self) -> "tuple[Weight, ...]":
        """The matrix of each expert."""
        names = (f"{self.name}.{expert}" for expert in range(self.shape[0]))
        return tuple(Weight("matrix", name, self.shape[1:], self.has_bias) for name in names)


class Parameters(ABC):
    """Gives a decoder its weights, by name and shape."""

    @abstractmethod
    def make(self, weight: Weight) -> Any:
        """The handle of a weight."""

    def matrix(
        self,
        name: str,
        num_rows: int,
        num_columns: int,
        bias: bool = False,
        parts: tuple[int, ...] = (),
    ) -> Matrix:
        """`name`.weight [num_rows, num_columns] and, if asked for, `name`.bias [num_rows]."""
        return self.make(Weight("matrix", name, (num_rows, num_columns), bias, parts))

    def router(self, name: str, num_experts: int, num_columns: int, bias: bool = False) -> Matrix:
        """As `matrix`, for the scores of experts: it keeps the checkpoint's float format even if other matrices
        are quantized, and is multiplied with rows that are not rounded."""
        return self.make(Weight("router", name, (num_experts, num_columns), bias))

    def experts(
        self, name: str, num_experts: int, num_rows: int, num_columns: int, bias: bool = False
    ) -> MatrixStack:
        """`name`.weight [num_experts, num_rows, num_columns] and, if asked for, `name`.bias
        [num_experts, num_rows]: one matrix of each expert."""
        return self.make(Weight("experts", name, (num_experts, num_rows, num_columns), bias))

    def table(self, name: str, num_rows: int, num_columns: int) -> Matrix:
        """`name`.weight [num_rows, num_columns] for `embed` alone: it stays in its file, as it is stored there,
        and steps read the rows of their tokens."""
        return self.make(Weight("table", name, (num_rows, num_columns)))

    def vector(self, name: str, size: int, scale: float = 1.0) -> Vector:
        """A norm's weight or bias, [size], times `scale`."""
        return self.make(Weight("vector", name, (size,), factor=scale))

    def convolution(self, name: str, num_channels: int, kernel_size: int) -> Vector:
        """`name`.weight [num_channels, kernel_size] as [kernel_size * num_channels]: the factors of the
        first row that a row reads, then those of the next."""
        return self.make(Weight("convolution", name, (num_channels, kernel_size)))


class Decoder(Protocol):
    """A model, or a part of one: its layers over one step's batch."""

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`; of a part without the head, its rows [T, hidden]."""
        ...


class Ops(ABC):
    """The functions with which a decoder computes. Arrays in and out are [T, ...] in the backend's own dtype, and
    where the backend keeps them."""

    def to_host(self, x: Array | Vector) -> HostArray:
        """A copy in the host's memory."""
        return np.array(x)

    def from_host(self, rows: HostArray) -> Array:
        """Rows [T, ...] of f32 as other ops take them."""
        return rows

    def received(self, batch: ForwardBatch, width: int) -> Array:
        """The rows [T, width] that the part of the model before this one has computed."""
        assert batch.received is not None
        return self.from_host(batch.received[:])

    @abstractmethod
    def embed(self, token_ids: IntArray, table: Matrix, scale: float = 1.0) -> Array:
        """Rows of `table` times `scale`: [T] -> [T, M]. Also learned positions."""

    @abstractmethod
    def linear(self, x: Array, weight: Matrix) -> Array:
        """x @ weight.T + bias: [T, M] -> [T, N]."""

    @abstractmethod
    def rms_norm(self, x: Array, weight: Vector | None, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis: [T, ..., M] (Zhang, Sennrich 2019).
        Without a weight, it is 1."""

    @abstractmethod
    def layer_norm(self, x: Array, weight: Vector, bias: Vector, eps: float) -> Array:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last axis (Ba et al. 2016)."""

    @abstractmethod
    def rope(self, x: Array, batch: ForwardBatch, rope: RopeConfig) -> Array:
        """Rotates the leading `rope.dim` components of each head, and multiplies them by the factor of
        `rope.scaling` and by `rope.growth`: [T, heads, D] (Su et al. 2021)."""

    @abstractmethod
    def activate(self, x: Array, activation: Activation) -> Array:
        """Elementwise activation: [T, M].

        "clamped_swish" is gpt-oss's: g * sigmoid(1.702 * g), g = min(x, 7).
        """

    @abstractmethod
    def gated_activate(self, gate_up: Array, activation: Activation) -> Array:
        """activation(gate) * up of gate_up = [gate | up]: [T, 2 M] -> [T, M] (Shazeer 2020).

        With "clamped_swish" up is clamped to -7 .. 7, and then 1 + up.
        """

    @abstractmethod
    def multiply(self, x: Array, gate: Array, function: Gate = "identity") -> Array:
        """x * function(gate): x [T, ...], gate of the same shape, or [T, 1]: one number for a row."""

    @abstractmethod
    def scale(self, x: Array, factors: Vector) -> Array:
        """x * factors: x [T, M], factors [M], or [1] for all columns."""

    @abstractmethod
    def causal_convolution(
        self,
        x: Array,
        weight: Vector,
        bias: Vector | None,
        state_layer: StateLayer,
        batch: ForwardBatch,
        activation: Activation | None = None,
    ) -> Array:
        """Each channel convolved over the rows of its request: [T, C] -> [T, C].

        y[t] = activation(bias + sum over k of weight[k] * x[t - (K - 1) + k]), weight [K * C], added in
        order of k. Rows before the request's first are zeros; those before the step's first come from
        the state, which then holds the request's last K - 1 rows.
        """

    @abstractmethod
    def gated_delta_net(
        self,
        qkv: Array,
        b: Array,
        a: Array,
        log_decay: Vector,
        step_bias: Vector,
        net: GatedDeltaNetConfig,
        state_layer: StateLayer,
        batch: ForwardBatch,
    ) -> Array:
        """Linear attention with a decaying state that corrects itself (Yang et al. 2024, gated delta
        networks): qkv [T, 2 Hk dk + Hv dv], b and a [T, Hv] -> [T, Hv, dv].

        Per head, with q and k divided by sqrt(sum of squares + 1e-6), and q also by
        sqrt(dk), token by token in order of the request, always in f32 at least:

            S *= exp(log_decay * softplus(a + step_bias))     log_decay < 0, [Hv] like step_bias
            S += k (sigmoid(b) * (v - S^T k))^T               S [dk, dv], zeros before the first token
            o = S^T q

        `log_decay` holds -exp of what checkpoints call A_log. The state then holds S.
        """

    @abstractmethod
    def route(
        self,
        logits: Array,
        num_chosen: int,
        router: Router,
        normalize: bool = False,
        scale: float = 1.0,
        bias: Vector | None = None,
    ) -> Array:
        """Chooses experts and weights them (Shazeer et al. 2017): logits [T, E] -> weights [T, E], 0
        for experts that are not chosen. In f32 at least.

        A row chooses the `num_chosen` experts with the largest logits; of equal ones the lowest. Their
        weights are, by `router`:

        * "softmax": softmax of all logits;
        * "softmax_chosen": softmax of the chosen logits;
        * "sigmoid": sigmoid of each logit. The largest sums of sigmoid and bias [E] are chosen
          (DeepSeek-AI 2024); the weights are without the bias.

        If `normalize`, the weights of a row are then divided by their sum. `scale` multiplies them. A row
        with a NaN or an infinity gives NaN to the experts that a row of zeros chooses: its output shows
        it, and other rows do not see it.
        """

    @abstractmethod
    def expert_mlp(
        self,
        x: Array,
        weights: Array,
        num_chosen: int,
        gate: MatrixStack,
        up: MatrixStack,
        down: MatrixStack,
        activation: Activation,
    ) -> Array:
        """The sum over experts e, from the lowest to the highest, of

            weights[:, e] * down[e](gated_activate([gate[e](x) | up[e](x)]))

        x [T, M], weights [T, E] -> [T, M]. An expert of weight 0 is not computed: at most `num_chosen`
        weights of a row are not 0. Each row is one sum in this order, whatever the other rows choose.
        """

    @abstractmethod
    def store_kv(self, kv_layer: KVLayer, k: Array, v: Array, batch: ForwardBatch) -> None:
        """Writes k, v [T, K, D] into `batch.slot_mapping` of this layer, in the cache's format.

        Keys that become codes a group of positions at a time (`KVFormat.open_positions`) are also kept in
        bf16: those of the request's two latest groups in its slot, those of other groups of the step until the
        next step. A step that begins within a group finds the group's earlier keys in the slot.
        """

    @abstractmethod
    def paged_attention(
        self,
        q: Array,
        kv_layer: KVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: Vector | None = None,
    ) -> Array:
        """softmax(mask(cap(scale * q @ K.T))) @ V per request and head: [T, H, D] -> [T, H, D].

        A row at position p sees positions max(0, p - sliding_window + 1) .. p of its own request, read
        from the cache through its block table. Query head h reads kv-head h // (H / K). Of keys that become
        codes a group at a time it reads its own group in bf16, and earlier ones as codes.
        cap(s) = softcap * tanh(s / softcap). `sinks` [H] are scores that take part in the softmax of their
        head and have no value (Xiao et al. 2023, attention sinks).
        """

    @abstractmethod
    def logits(self, x: Array, weight: Matrix, softcap: float | None = None) -> Array:
        """The head: linear, then the soft cap: [R, M] -> [R, V]."""
