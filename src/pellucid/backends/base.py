"""The contract of a backend: its ops, its weights, its KV caches, and how it runs a decoder."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.drawing import DrawTable
from pellucid.backends.joined_matrix import JoinedMatrix, UniformMatrix, WeightMatrix
from pellucid.backends.ops import (
    Decoder,
    ForwardBatch,
    KVCache,
    Matrix,
    MatrixStack,
    Ops,
    Vector,
)
from pellucid.backends.quantization.formats import IntegerFormat, MatrixFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.row_table import RowTable, TableInFile
from pellucid.facts.host_memory import available_memory
from pellucid.facts.machine import Arithmetic, DeviceFacts, Machine
from pellucid.facts.model_config import ModelConfig

if TYPE_CHECKING:  # the contract needs no extension
    from pellucid.backends.native import Kernels, ThreadPool


class ExpertReads(Struct, frozen=True):
    """The experts in a file, in bytes.

    Args:
        size: of all of them.
        read: what steps have read.
        found: how much of `read` was in memory when a step asked for it.
    """

    size: int
    read: int
    found: int


class MatrixShape(NamedTuple):
    """A matrix without its numbers."""

    format: MatrixFormat
    num_outputs: int
    num_inputs: int


class JoinedHandle(Struct, frozen=True):
    """The handles of matrices whose rows are one matrix's: `linear` takes them for one."""

    parts: tuple[Matrix, ...]


class Weights(ABC):
    """Makes the handles of weights while a model loads.

    Attributes:
        itemsize: bytes of a number of a matrix in memory, where all formats become floats; None: each
            format keeps its own.
        num_ranks: processes that have a share of the matrices each.
        takes_blocks: whether a matrix may be a `BlockMatrix`; otherwise blocks are unpacked before.
    """

    itemsize: int | None = None
    takes_blocks: bool = False
    num_ranks: int = 1

    def expect(self, num_bytes: int) -> None:  # noqa: B027 (not all backends read later)
        """Announces matrices of `num_bytes` in all. Until `Backend.compile`, matrices that are views of mapped
        files may be read after `matrix` has returned."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of files that have not been read yet for the matrices made so far."""
        return 0

    def read(self) -> int:
        """Reads some of the waiting bytes, on all threads. Returns the rest of `waiting_bytes`.
        `Backend.compile` reads all of them."""
        return 0

    def matrix(
        self,
        weight: WeightMatrix,
        bias: npt.NDArray[Any] | None = None,
        rounds_activations: bool = True,
    ) -> Matrix:
        """A handle for `embed`, `linear` and `logits` from weight [N, M] and bias [N]. A `MatrixStack`
        is a sequence of such.

        The weight's format decides how it is stored: floats keep their format or become the backend's dtype;
        integers keep theirs.

        Args:
            rounds_activations: whether the backend may round rows where they meet weights of fewer bits.
        """
        if not isinstance(weight, JoinedMatrix):
            return self.uniform(weight, bias, rounds_activations)
        parts = zip(weight.parts, weight.split(bias), strict=True)
        return JoinedHandle(tuple(self.uniform(*each, rounds_activations) for each in parts))

    def own_rows(self, num_rows: int) -> slice:
        """Which rows of a matrix of `num_rows` rows this process computes: it needs no others. Routers, whose
        activations are not rounded, each process computes as a whole."""
        return slice(0, num_rows)

    def shared(self, own: Matrix, num_rows: int) -> Matrix:
        """The handle of a matrix of `num_rows` rows, from the handle of its `own_rows`."""
        return own

    def own_experts(self, num_experts: int) -> range:
        """Which experts this process computes. Of others it has handles that are `planned`."""
        return range(num_experts)

    @abstractmethod
    def uniform(
        self, weight: UniformMatrix, bias: npt.NDArray[Any] | None, rounds_activations: bool
    ) -> Matrix:
        """As `matrix`, for a matrix of one format."""

    def expert(
        self,
        weight: UniformMatrix,
        bias: npt.NDArray[Any] | None = None,
    ) -> Matrix:
        """As `matrix`, for the matrix of an expert: a step reads only a few of them."""
        return self.matrix(weight, bias)

    def stack(self, experts: Iterable[Matrix]) -> MatrixStack:
        """The handles of `expert` of all experts of a layer, in order, as `expert_mlp` takes them."""
        return tuple(experts)

    def table(self, rows: RowTable) -> Matrix:
        """A handle for `embed` from a matrix that stays in its file."""
        return TableInFile(rows)

    @property
    def expert_reads(self) -> "ExpertReads | None":
        """The experts' bytes that steps have read from a file; None: experts are in memory."""
        return None

    def planned(
        self, parts: Sequence[MatrixShape], bias: bool, rounds_activations: bool = True
    ) -> Matrix:
        """A handle that has shapes and no numbers: of an expert that another process computes, or for a decoder that
        is compiled for its `scratch_bytes` and does not run.

        Args:
            parts: whose rows are the matrix's; neighbours differ in format.
            rounds_activations: as in `matrix`.
        """
        return None

    @abstractmethod
    def vector(self, weight: npt.NDArray[Any]) -> Vector:
        """A handle for the norms' weights and biases."""

    def quantize(self, weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
        """The result of `quantize_matrix`, bit for bit."""
        return quantize_matrix(weight, weight_format)


class RowQuestion(NamedTuple):
    """A question to `summarize_rows`: what an observer of a token wants to know about its row of logits.

    Attributes:
        token: that was chosen.
        num_likeliest: tokens to name, at most V.
        sharpness: log2(e) / temperature, a float32, > 0.
        top_k: 0 is off; so are a `top_p` of 1 and a `min_p` of 0.
    """

    token: int
    num_likeliest: int
    sharpness: float
    top_k: int
    top_p: float
    min_p: float


class KeptTokens(NamedTuple):
    """Tokens, and the sum of their weights at the temperature, relative to the likeliest token's."""

    num: int
    weight: float


class LikelyToken(NamedTuple):
    """One of the likeliest tokens of a row, and whether all truncations keep it."""

    token_id: int
    logit: float
    is_kept: bool


class RowSummary(NamedTuple):
    """A row of finite logits; d is a logit's distance to the largest. Sums are those of float32 weights.

    Attributes:
        peak: the largest logit.
        total: sum of e^d.
        weighted: sum of d e^d.
        logit: of the token asked for.
        rank: of that token: 1 for the largest logit; of equal ones the lower id comes first.
        is_kept: whether all truncations keep that token.
        everything: the whole row; then the tokens that each truncation keeps, in order.
        likeliest: tokens in order of rank.
    """

    peak: float
    total: float
    weighted: float
    logit: float
    rank: int
    is_kept: bool
    everything: KeptTokens
    after_top_k: KeptTokens
    after_top_p: KeptTokens
    after_min_p: KeptTokens
    likeliest: list[LikelyToken]


class LogitRows(Protocol):
    """Rows of logits [R, V]: an array, or rows that stay on a device and are copied when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int | slice | tuple[int, int], /) -> Any:
        """A row [V] in the host's memory, some of the rows, or the logit of (row, token)."""
        ...


@dataclass(frozen=True)
class StepLogits:
    """The results of a step's forward.

    Attributes:
        rows: [R, V] of the rows `ForwardBatch.logits_indices`. The logits of `largest` and of `drawn` are at hand
            without their rows, as `rows[row, token]`. Of a part of a model without the head, its rows [T, hidden].
        largest: [R] `rows.argmax(axis=1)`, as far as the backend computed it; else empty.
        drawn: the token of each draw that was asked for, None where the sampler has to look: parameters or logits
            leave none, or the backend has no such draw; empty without draws.
        expert_bytes: of the experts' weights that the step read.
    """

    rows: LogitRows
    largest: Sequence[int] = ()
    drawn: Sequence[int | None] = ()
    expert_bytes: int = 0


@dataclass(frozen=True)
class StepWeights:
    """The weights that a step reads, whatever its number of tokens: each matrix once. Of the experts, a step
    reads only those that its tokens choose: `StepLogits.expert_bytes`.

    Args:
        layer_bytes: of all layers without their experts, scales and zero points included.
        head_bytes: of the head, and of layers that only rows with logits pass: for steps that compute logits.
        arithmetic: in which most of them are multiplied.
        expert_bytes: of all experts.
    """

    layer_bytes: int
    head_bytes: int
    arithmetic: Arithmetic
    expert_bytes: int = 0

    def num_bytes(self, with_head: bool) -> int:
        """Without the experts."""
        return self.layer_bytes + (self.head_bytes if with_head else 0)


class BlocksLostError(Exception):
    """The contents of blocks are gone, or undefined."""


class CompiledDecoder(ABC):
    """A decoder in the form in which its backend runs it best: computes steps for the engine.

    Attributes:
        draws_tokens: whether `step` notes where logits are largest and draws tokens from them; else the
            sampler draws from the logits.
        num_machines: that compute a step one after the other, and so can compute as many steps at the same time.
    """

    draws_tokens: bool = False
    num_machines: int = 1

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """V."""

    @property
    @abstractmethod
    def step_weights(self) -> StepWeights: ...

    @abstractmethod
    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        """Memory for the activations between the ops of the largest step, without its logits."""

    def send(self, batch: ForwardBatch, kv_cache: KVCache) -> ForwardBatch:
        """Has other machines begin with a step, if there are any.

        Returns:
            The step for `step`, or for `give_up`.
        """
        return batch

    def give_up(self, batch: ForwardBatch) -> None:
        """Waits until no other machine computes a step that was sent: `step` is not called for it."""
        return

    @abstractmethod
    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        """The logits of a step, and what is drawn from them.

        Args:
            batch: as `send` has returned it.
            draws: None unless `draws_tokens`.
        """

    def summarize_rows(
        self, rows: LogitRows, questions: Sequence[tuple[int, RowQuestion]]
    ) -> list[RowSummary | None]:
        """Answers questions about rows of `StepLogits.rows`, each with the index of its row. None for a row of which a
        logit is not finite, and without `draws_tokens`."""
        return [None] * len(questions)

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> LogitRows:
        """Logits [R, V] of the rows `batch.logits_indices`."""
        return self.step(self.send(batch, kv_cache), kv_cache).rows


class ThreadUse(NamedTuple):
    """How many compute threads steps have.

    Attributes:
        most: by the limits of this process.
        num_threads: of the next step: fewer than `most` while other programs use the cores.
    """

    most: int
    num_threads: int


class NativeThreads(NamedTuple):
    """The kernels of one instruction set, and the pool of threads on which they run."""

    kernels: "Kernels"
    pool: "ThreadPool"


class Backend(ABC):
    """An implementation of the ops. Models use its `ops`, loading its `weights`, the engine the rest.

    Attributes:
        name: as in `EngineConfig.backend`.
        ops: what decoders call.
        weights: makes the handles that ops take.
    """

    name: str
    ops: Ops
    weights: Weights

    @property
    @abstractmethod
    def identity(self) -> str:
        """Everything besides the inputs that the bits of results depend on: the backend, its version, the
        instruction set."""

    def stop_waiting(self) -> None:  # noqa: B027 (most backends compute alone)
        """Ends a step that waits for other processes, and all later ones, with a RuntimeError. From any thread."""

    @property
    def thread_use(self) -> ThreadUse | None:
        """How many threads steps have; None: this backend does not lower their number."""
        return None

    def batch(self, batch: ForwardBatch) -> ForwardBatch:
        """A step's batch in the form in which this backend's ops read it fastest; they take both."""
        return batch

    @property
    def device_facts(self) -> DeviceFacts | None:
        """Of the device that computes; None: the host's processor does."""
        return None

    def available_memory(self) -> int | None:
        """Bytes that can be taken now where weights and KV caches lie; None: the system does not report it."""
        return available_memory()

    def measure(self, num_threads: int | None) -> Machine:
        """Measures the ceilings for code that runs on this backend, with the native kernels and threads of the
        host. Takes a second or two, and a quarter of a gigabyte.

        Args:
            num_threads: of a backend without native threads; None: one, as the NumPy backend uses by default.
        """
        from pellucid.backends.native import ThreadPool, find_kernels, measure_roofline

        kernels, pool = self.native_threads or (find_kernels(), ThreadPool(num_threads or 1))
        roofline = measure_roofline(kernels, pool)
        return Machine(
            isa=kernels.isa,
            num_threads=pool.num_threads,
            bandwidth_bytes_per_second=roofline.read_bytes_per_second,
            peak_int8_ops=roofline.int8_ops_per_second,
            peak_bf16_flops=roofline.bf16_flops_per_second,
            peak_f32_flops=roofline.f32_flops_per_second,
        )

    @property
    def native_threads(self) -> "NativeThreads | None":
        """The native kernels and threads of this backend; None: it has none."""
        return None

    def kv_shares(self, config: ModelConfig) -> int:
        """How many processes have a share of the kv-heads each. The cache of this one, and the bytes below, are those
        of its share."""
        return 1

    @abstractmethod
    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        """Bytes of one block: K and V of the layers of a group (`kv_groups`), scales and padding included.

        Raises:
            ValueError: the backend has no such `dtype`.
        """

    def open_area_bytes(self, config: ModelConfig, dtype: str) -> int:
        """Bytes of the cache's area for open keys of a step, beside those in slots (`facts.kv_groups`). 0: the
        backend keeps them as it keeps activations."""
        return 0

    @abstractmethod
    def make_kv_cache(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_state_slots: int = 1,
    ) -> KVCache:
        """Allocates the cache of all layers.

        Args:
            dtype: of keys and values, as in `EngineConfig.kv_cache_dtype`.
            num_state_slots: sequences whose recurrent states, in f32 at least, and open keys it holds; of models
                and formats without such it holds none.
        """

    @abstractmethod
    def compile(self, decoder: Decoder, config: ModelConfig) -> CompiledDecoder:
        """The fastest form of `decoder` on this backend, with the same logits; called once its weights are loaded.

        A backend that runs a whole forward outside of Python prepares that here.
        """
