"""The ops contract: what a decoder may call, on arrays of T tokens.

Letters in shapes: T tokens of the step, B requests, R rows whose logits are wanted, H query heads,
K kv-heads, D head dim, V vocabulary. Decoders use `+`, slicing and `.reshape`; everything else is an
op. Every op computes each row the same way whatever other rows stand beside it: that is what makes a
request's answer independent of its batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import WeightMatrix
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.config import Activation, ModelConfig, RopeConfig

Array: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
BlockBytes: TypeAlias = npt.NDArray[np.uint8]  # [bytes_per_block]

# Handles are opaque outside the backend that made them, so formats never show in a decoder.
Matrix: TypeAlias = Any
Vector: TypeAlias = Any
RopeTable: TypeAlias = Any
KVLayer: TypeAlias = Any


@dataclass(frozen=True)
class ForwardBatch:
    """The arrays of one step: a ragged batch in which each request contributes q_len >= 1 rows."""

    token_ids: IntArray  # [T]
    positions: IntArray  # [T] index of the token in its request
    rope_lens: IntArray  # [T] max(prompt length, position + 1), for scalings that depend on length
    slot_mapping: IntArray  # [T] block_id * block_size + offset, where the token's K and V go
    query_start: IntArray  # [B + 1] rows of request b are query_start[b] .. query_start[b + 1]
    seq_lens: IntArray  # [B] positions in the cache once this step has stored its own
    block_tables: IntArray  # [B, blocks of the longest], -1 beyond a request's own
    logits_indices: IntArray  # [R] rows of T


class KVCache(Protocol):
    """The arrays behind the blocks, one handle per layer. Only ops look inside; others move blocks whole."""

    @property
    def layers(self) -> Sequence[KVLayer]: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def bytes_per_block(self) -> int:
        """Of all layers, K and V, scales and padding included."""
        ...

    def copy_block(self, source_id: int, target_id: int) -> None:
        """Makes block `target_id` hold what block `source_id` holds, in all layers."""
        ...

    def read_block(self, block_id: int) -> BlockBytes:
        """What a block holds in all layers, [bytes_per_block], a copy. Only a cache of the same model,
        format, block size and backend can make sense of it."""
        ...

    def write_block(self, block_id: int, data: BlockBytes) -> None:
        """Makes a block hold, bit for bit, what `read_block` gave.

        Args:
            data: [bytes_per_block]; may be read-only.
        """
        ...


class Parameters(Protocol):
    """Where a decoder gets its weights: it names each one and says the shape that it needs.

    Names are ours ("layers.0.qkv_proj"); loading knows what the checkpoint calls them.
    """

    def matrix(self, name: str, num_rows: int, num_columns: int, bias: bool = False) -> Matrix:
        """`name`.weight [num_rows, num_columns] and, if asked for, `name`.bias [num_rows]."""
        ...

    def vector(self, name: str, size: int) -> Vector:
        """A norm's weight or bias, [size]."""
        ...


class Decoder(Protocol):
    """A model: all layers over one step's batch."""

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`."""
        ...


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How the tokens of one answer are drawn; `execution/sampling_order.py` defines what that means.

    Attributes:
        sharpness: log2(e) / temperature, a float32; 0 for the largest logit, greedily.
        top_k: 0 is off.
        allowed: [ceil(V / 32)] a bit for each token, the lowest of a word first; None: all of them.
        bias_ids: [N] each once.
        biases: [N] added to their logits.
    """

    seed: int
    stream: int
    sharpness: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    allowed: npt.NDArray[np.uint32] | None = None
    bias_ids: npt.NDArray[np.int32] | None = None
    biases: npt.NDArray[np.float64] | None = None


class Draw(NamedTuple):
    """One token to be drawn from a row of logits.

    Attributes:
        row: of the step's logits.
        position: of the token in its sequence.
        forbidden: [N] token ids.
        text: [position] prompt and output, for penalties; None where there are none.
        num_prompt_tokens: how many of `text` are the prompt's.
    """

    row: int
    settings: DrawSettings
    position: int
    forbidden: npt.NDArray[np.int32] | None = None
    text: npt.NDArray[np.int32] | None = None
    num_prompt_tokens: int = 0


@dataclass(frozen=True)
class StepLogits:
    """What a step computed.

    Attributes:
        rows: [R, V] of the rows `ForwardBatch.logits_indices`.
        largest: [R] `rows.argmax(axis=1)`, as far as somebody noted it; else empty.
        drawn: the token of each draw that was asked for, None where parameters or logits leave none;
            empty if nobody draws.
    """

    rows: Array
    largest: Sequence[int] = ()
    drawn: Sequence[int | None] = ()


class StepDecoder(ABC):
    """A decoder that notes where its logits are largest while it writes them, and draws tokens."""

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @abstractmethod
    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: Sequence[Draw] = ()
    ) -> StepLogits:
        """What `Decoder.forward` gives, where it is largest, and tokens drawn from it.

        Args:
            draws: in order of rows.
        """


class Backend(ABC):
    """Load-time constructors and the ops. Arrays in and out are [T, ...] in the backend's own dtype."""

    name: str
    # Bytes of a weight in memory, where all formats become floats; None: each keeps its own.
    weight_itemsize: int | None

    @property
    @abstractmethod
    def identity(self) -> str:
        """What the bits of results depend on beside inputs: who computes, in which version, on which
        instructions."""

    # -- load time --------------------------------------------------------------------------------

    @abstractmethod
    def expect_weights(self, num_bytes: int) -> None:
        """Says that matrices of `num_bytes` in all are about to come. Until `compile`, those that are
        views of mapped files may be read when `matrix` has returned."""

    @property
    def waiting_bytes(self) -> int:
        """Of files, that matrices made so far are yet to be read from."""
        return 0

    def read_weights(self) -> int:
        """Reads some of what waits, on all threads. Returns what is left of `waiting_bytes`; `compile`
        reads all."""
        return 0

    @abstractmethod
    def matrix(self, weight: WeightMatrix, bias: npt.NDArray[Any] | None = None) -> Matrix:
        """A handle for `embed`, `linear` and `logits` from weight [N, M] and bias [N].

        The kind of the weight decides how it is kept: floats stay what they are or become the
        backend's dtype, integers stay the integers that they are.
        """

    @abstractmethod
    def quantize(self, weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
        """What `quantize_matrix` gives, bit for bit."""

    @abstractmethod
    def vector(self, weight: npt.NDArray[Any]) -> Vector:
        """A handle for the norms' weights and biases."""

    @abstractmethod
    def rope_table(self, rope: RopeConfig) -> RopeTable:
        """What `rope` needs, made once per model."""

    @abstractmethod
    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        """Bytes of K and V of all layers for one block, scales included.

        Raises:
            ValueError: the backend has no such `dtype`.
        """

    @abstractmethod
    def make_kv_cache(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: str
    ) -> KVCache:
        """Allocates the cache of all layers; `dtype` as in `EngineConfig.kv_cache_dtype`."""

    @abstractmethod
    def scratch_bytes(
        self, decoder: Decoder, config: ModelConfig, max_num_batched_tokens: int
    ) -> int:
        """Memory for what lies between the ops of the largest step, without its logits.

        Args:
            decoder: as `compile` gave it.
        """

    def compile(self, decoder: Decoder, config: ModelConfig) -> Decoder:
        """What runs `decoder` best here and gives the same logits; called once its weights are there.

        A backend that keeps what happens between ops out of Python does so here.
        """
        return decoder

    # -- per step ---------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, token_ids: IntArray, table: Matrix, scale: float = 1.0) -> Array:
        """Rows of `table` times `scale`: [T] -> [T, M]. Also learned positions."""

    @abstractmethod
    def linear(self, x: Array, weight: Matrix) -> Array:
        """x @ weight.T + bias: [T, M] -> [T, N]."""

    @abstractmethod
    def rms_norm(self, x: Array, weight: Vector, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis: [T, ..., M] (Zhang, Sennrich 2019)."""

    @abstractmethod
    def layer_norm(self, x: Array, weight: Vector, bias: Vector, eps: float) -> Array:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last axis (Ba et al. 2016)."""

    @abstractmethod
    def rope(self, x: Array, batch: ForwardBatch, table: RopeTable) -> Array:
        """Rotates the leading `RopeConfig.dim` components of each head: [T, heads, D]."""

    @abstractmethod
    def activate(self, x: Array, activation: Activation) -> Array:
        """Elementwise activation: [T, M]."""

    @abstractmethod
    def gated_activate(self, gate_up: Array, activation: Activation) -> Array:
        """activation(gate) * up of gate_up = [gate | up]: [T, 2 M] -> [T, M] (Shazeer 2020)."""

    @abstractmethod
    def store_kv(self, kv_layer: KVLayer, k: Array, v: Array, slot_mapping: IntArray) -> None:
        """Writes k, v [T, K, D] into the slots of this layer, in the cache's format."""

    @abstractmethod
    def paged_attention(
        self,
        q: Array,
        kv_layer: KVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> Array:
        """softmax(mask(cap(scale * q @ K.T))) @ V per request and head: [T, H, D] -> [T, H, D].

        A row at position p sees positions max(0, p - sliding_window + 1) .. p of its own request, read
        from the cache through its block table. Query head h reads kv-head h // (H / K).
        cap(s) = softcap * tanh(s / softcap).
        """

    @abstractmethod
    def logits(self, x: Array, weight: Matrix, softcap: float | None = None) -> Array:
        """The head: linear, then the soft cap: [R, M] -> [R, V]."""
