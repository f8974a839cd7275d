"""The ops on native kernels.

Given arrays, an op runs at once, as a program of its own. Given the symbolic arrays of a trace, it
records itself: `compile` traces a decoder's forward once and from then on replays it as one native call
per step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.arithmetic_identity import extension_identity
from pellucid.backends.base import (
    Array,
    Decoder,
    ForwardBatch,
    IntArray,
    KVCache,
    StepDecoder,
    StepLogits,
)
from pellucid.backends.batch_slices import slices
from pellucid.backends.cpu_kv_cache import (
    CpuKVCache,
    CpuKVLayer,
    TracedKVCache,
    make_cpu_kv_cache,
)
from pellucid.backends.joined_matrix import JoinedMatrix, UniformMatrix, WeightMatrix
from pellucid.backends.mapped_arrays import is_mapped
from pellucid.backends.native import (
    Indices,
    LinearWeights,
    Program,
    RowSet,
    ThreadPool,
    WeightMemory,
    WeightPacker,
    find_kernels,
    kv_bytes_per_block,
    pack_weights,
    quantize_weights,
)
from pellucid.backends.numpy_backend import NumpyBackend
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix, empty_matrix
from pellucid.backends.quantization.weights import check_scales
from pellucid.backends.rope_frequencies import depends_on_length
from pellucid.backends.tracing import (
    BufferView,
    Heads,
    ProgramBuilder,
    SymbolicArray,
    SymbolicIndices,
    Trace,
    build,
    symbolic_batch,
)
from pellucid.config import Activation, ModelConfig, RopeConfig

# Rows that a program computes at a time; a longer step is cut. It bounds the memory for what lies
# between ops, keeps most of it in cache, and is enough to read the weights once for many rows.
MAX_ROWS = 512

# Threads must wake and then meet some tens of times, which takes about as long as one of them takes
# to go through a few megabytes of weights: smaller steps stay on the caller's thread.
SMALL_STEP_BYTES = 4 << 20

_FLOAT_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

_INDICES = {"token_ids": Indices.TOKEN_IDS, "positions": Indices.POSITIONS}

Rows: TypeAlias = Any  # an Array, or a SymbolicArray while a forward is traced


@dataclass(frozen=True)
class JoinedWeights:
    """Matrices whose rows are one matrix's."""

    parts: tuple[LinearWeights, ...]

    @property
    def num_outputs(self) -> int:
        return sum(part.num_outputs for part in self.parts)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first output of each part."""
        return tuple(accumulate((part.num_outputs for part in self.parts[:-1]), initial=0))


class CpuBackend(NumpyBackend):
    """The ops on native kernels, in f32 between ops.

    Args:
        num_threads: compute threads, the caller's own included.
        isa: level of the kernels, one of `kernel_levels()`; empty: the best.
        quantize_activations: whether rows are rounded where they meet weights of fewer bits (to int8
            for integer weights, to bf16 for bf16 ones); else those weights become f32.
        max_rows: rows that a compiled decoder computes at a time.
        small_step_bytes: weights below which a step of one row is not worth waking threads for.

    Raises:
        ValueError: the machine does not run this level.
    """

    name = "cpu"

    def __init__(
        self,
        num_threads: int = 1,
        isa: str = "",
        quantize_activations: bool = True,
        max_rows: int = MAX_ROWS,
        small_step_bytes: int = SMALL_STEP_BYTES,
    ) -> None:
        super().__init__(np.float32, quantize_activations)
        self.weight_itemsize = None
        self.kernels = find_kernels(isa)
        self.pool = ThreadPool(num_threads)
        self.max_rows = max_rows
        self.small_step_bytes = small_step_bytes
        # Where matrices go that are being loaded, and who packs them meanwhile.
        self._memory: WeightMemory | None = None
        self._packer: WeightPacker | None = None

    @property
    def identity(self) -> str:
        return f"cpu {self.kernels.isa} {extension_identity()}"

    # -- load time --------------------------------------------------------------------------------

    def expect_weights(self, num_bytes: int) -> None:
        self._memory, self._packer = WeightMemory(num_bytes), WeightPacker()

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._packer is None else self._packer.waiting_bytes

    def read_weights(self) -> int:
        return 0 if self._packer is None else self._packer.help(self.pool)

    def matrix(  # type: ignore[override]  # the handle is opaque
        self, weight: WeightMatrix, bias: npt.NDArray[Any] | None = None
    ) -> LinearWeights | JoinedWeights:
        if isinstance(weight, JoinedMatrix):
            parts = zip(weight.parts, weight.split(bias), strict=True)
            return JoinedWeights(tuple(self._packed(part, own) for part, own in parts))
        return self._packed(weight, bias)

    def _packed(self, weight: UniformMatrix, bias: npt.NDArray[Any] | None) -> LinearWeights:
        own_bias = None if bias is None else self.vector(bias)
        activations = "native" if self.quantize_activations else "f32"
        if isinstance(weight, QuantizedMatrix):
            arrays = {name: np.ascontiguousarray(array) for name, array in weight.arrays.items()}
            return pack_weights(
                weight.format.name,
                arrays.pop("codes"),
                **arrays,
                num_inputs=weight.num_inputs,
                bias=own_bias,
                activations=activations,
                pool=self.pool,
                memory=self._memory,
                packer=self._packer if all(map(is_mapped, weight.arrays.values())) else None,
            )
        name, bits = _float_bits(weight)
        return pack_weights(
            name,
            bits,
            bias=own_bias,
            activations=activations,
            pool=self.pool,
            memory=self._memory,
            packer=self._packer if is_mapped(weight) else None,
        )

    def quantize(self, weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
        matrix = empty_matrix(weight_format, *weight.shape)
        name, bits = _float_bits(weight)
        quantize_weights(
            weight_format.name,
            name,
            bits,
            matrix.codes,
            matrix.scales,
            matrix.zero_points,
            kernels=self.kernels,
            pool=self.pool,
        )
        check_scales(matrix, weight)
        return matrix

    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        return kv_bytes_per_block(
            dtype, config.num_layers, config.num_kv_heads, config.head_dim, block_size
        )

    def make_kv_cache(  # type: ignore[override]  # the handle is opaque
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: str
    ) -> CpuKVCache:
        return make_cpu_kv_cache(config, num_blocks, block_size, dtype)

    def scratch_bytes(
        self, decoder: Decoder, config: ModelConfig, max_num_batched_tokens: int
    ) -> int:
        """Of a compiled decoder, which has its memory: exactly."""
        assert isinstance(decoder, CompiledDecoder)
        return decoder.scratch_bytes

    def compile(self, decoder: Decoder, config: ModelConfig) -> "CompiledDecoder":
        """`decoder` as one native call per step. Allocates what a step needs between ops."""
        trace = Trace()
        handles: Any = TracedKVCache(config)  # a cache only as far as forward looks
        logits: Any = decoder.forward(symbolic_batch(trace), handles)
        while self.read_weights() > 0:
            pass
        self._memory = self._packer = None  # its matrices keep the memory
        return CompiledDecoder(self, trace, logits)

    # -- per step ---------------------------------------------------------------------------------

    def embed(self, token_ids: Any, table: LinearWeights, scale: float = 1.0) -> Rows:  # type: ignore[override]
        if not isinstance(token_ids, SymbolicIndices):
            batch = _batch_of_rows(len(token_ids), token_ids=token_ids)
            return self._run_alone(
                lambda trace: self.embed(SymbolicIndices(trace, "token_ids"), table, scale), batch
            )
        indices = _INDICES[token_ids.name]
        return token_ids.trace.record(
            "embed",
            [],
            (table.num_inputs,),
            lambda to, _, y: to.program.embed(indices, table, scale, y),
            rows=RowSet.TOKENS,
        )

    def linear(self, x: Rows, weight: LinearWeights | JoinedWeights) -> Rows:  # type: ignore[override]
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.linear(x, weight), x)
        return _record_linear(x, weight)

    def rms_norm(self, x: Rows, weight: Array, eps: float) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.rms_norm(x, weight, eps), x)
        rows, num_vectors = x.rows, x.operand.width // len(weight)
        return x.trace.record(
            "rms_norm",
            [x],
            x.shape,
            lambda to, x, y: to.program.rms_norm(rows, x[0], weight, eps, num_vectors, y),
            can_overwrite=True,
        )

    def layer_norm(self, x: Rows, weight: Array, bias: Array, eps: float) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.layer_norm(x, weight, bias, eps), x)
        rows, num_vectors = x.rows, x.operand.width // len(weight)
        return x.trace.record(
            "layer_norm",
            [x],
            x.shape,
            lambda to, x, y: to.program.layer_norm(rows, x[0], weight, bias, eps, num_vectors, y),
            can_overwrite=True,
        )

    def rope(self, x: Rows, batch: ForwardBatch, table: RopeConfig) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.rope(x, batch, table), x, batch=batch)
        num_heads, head_dim = x.shape
        rotations = x.trace.rotations(table)
        return x.trace.record(
            "rope",
            [x, rotations],
            x.shape,
            lambda to, x, y: to.program.rope(x[0], x[1], num_heads, head_dim, table.dim, y),
            can_overwrite=True,
        )

    def activate(self, x: Rows, activation: Activation) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.activate(x, activation), x)
        rows, width = x.rows, x.operand.width
        return x.trace.record(
            "activate",
            [x],
            x.shape,
            lambda to, x, y: to.program.activate(rows, x[0], activation, width, y),
            can_overwrite=True,
        )

    def gated_activate(self, gate_up: Rows, activation: Activation) -> Rows:
        if not isinstance(gate_up, SymbolicArray):
            return self._run_on(lambda x: self.gated_activate(x, activation), gate_up)
        rows, width = gate_up.rows, gate_up.operand.width // 2
        return gate_up.trace.record(
            "gated_activate",
            [gate_up],
            (width,),
            lambda to, x, y: to.program.gated_activate(rows, x[0], activation, width, y),
            can_overwrite=True,
        )

    def store_kv(  # type: ignore[override]
        self, kv_layer: CpuKVLayer, k: Rows, v: Rows, slot_mapping: IntArray
    ) -> None:
        if not isinstance(k, SymbolicArray):
            batch = _batch_of_rows(len(k), slot_mapping=slot_mapping)
            self._run_on(
                lambda k, v: self.store_kv(kv_layer, k, v, slot_mapping),
                k,
                v,
                batch=batch,
                kv_cache=kv_layer.cache,
            )
            return
        num_kv_heads, _ = k.shape
        k.trace.record_effect(
            "store_kv",
            [k, v],
            lambda to, x, _: to.program.store_kv(kv_layer.index, x[0], x[1], num_kv_heads),
        )

    def paged_attention(  # type: ignore[override]
        self,
        q: Rows,
        kv_layer: CpuKVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> Rows:
        if not isinstance(q, SymbolicArray):
            return self._run_on(
                lambda q: self.paged_attention(q, kv_layer, batch, scale, sliding_window, softcap),
                q,
                batch=batch,
                kv_cache=kv_layer.cache,
            )
        num_heads, head_dim = q.shape
        heads = Heads(num_heads, kv_layer.num_kv_heads, head_dim, kv_layer.max_seq_len)
        return q.trace.record(
            "attention",
            [q],
            q.shape,
            lambda to, x, y: to.attention(heads).paged_attention(
                kv_layer.index, x[0], scale, sliding_window, softcap, y
            ),
        )

    def logits(self, x: Rows, weight: LinearWeights, softcap: float | None = None) -> Rows:  # type: ignore[override]
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.logits(x, weight, softcap), x)
        notes_largest = x.rows is RowSet.LOGITS  # not where the op runs alone
        if softcap is None:
            return _record_linear(x, weight, notes_largest)
        rows, width = x.rows, weight.num_outputs
        logits = x.trace.record(
            "softcap",
            [_record_linear(x, weight)],
            (width,),
            lambda to, x, y: to.program.softcap(rows, x[0], softcap, width, y),
            can_overwrite=True,
        )
        if notes_largest:
            x.trace.record_effect(
                "largest", [logits], lambda to, x, _: to.program.largest(x[0], width)
            )
        return logits

    # -- ops on real arrays -----------------------------------------------------------------------

    def _run_on(
        self,
        op: Callable[..., SymbolicArray | None],
        *arrays: Array,
        batch: ForwardBatch | None = None,
        kv_cache: CpuKVCache | None = None,
    ) -> Array:
        """op(*arrays), arrays [T, ...] of f32, as a program of its own."""
        inputs = [
            np.ascontiguousarray(array, np.float32).reshape(len(array), math.prod(array.shape[1:]))
            for array in arrays
        ]
        shapes = [array.shape[1:] for array in arrays]

        def on_inputs(trace: Trace) -> SymbolicArray | None:
            return op(*(trace.input(index, shape) for index, shape in enumerate(shapes)))

        return self._run_alone(on_inputs, batch or _batch_of_rows(len(arrays[0])), kv_cache, inputs)

    def _run_alone(
        self,
        op: Callable[[Trace], SymbolicArray | None],
        batch: ForwardBatch,
        kv_cache: CpuKVCache | None = None,
        inputs: Sequence[Array] = (),
    ) -> Array:
        num_rows = len(batch.token_ids)
        trace = Trace()
        result = op(trace)
        program = self.new_program(max(num_rows, 1))
        build(trace, result, program)
        output = np.empty((num_rows, program.output_width), np.float32)
        frequencies = [self.frequencies(rope, batch.rope_lens) for rope in trace.ropes]
        self.run(program, frequencies, batch, kv_cache, output, inputs)
        return output if result is None else output.reshape(num_rows, *result.shape)

    def new_program(self, max_rows: int) -> Program:
        """An empty program for steps of at most `max_rows` tokens."""
        return Program(self.kernels, self.pool, max_rows, self.small_step_bytes)

    def frequencies(self, rope: RopeConfig, lengths: IntArray) -> Array:
        """Radians per position, [T, dim / 2], or [1, dim / 2] if the same for every length [T] of text."""
        return self._frequencies(rope, lengths)[0]

    def run(
        self,
        program: Program,
        frequencies: Sequence[Array],
        batch: ForwardBatch,
        kv_cache: CpuKVCache | None,
        output: Array,
        inputs: Sequence[Array] = (),
        stage_seconds: npt.NDArray[np.float64] | None = None,
    ) -> list[int]:
        """One call of `program`.

        Args:
            program: made from a trace.
            frequencies: of each of the trace's rotations.
            batch: at most as many rows as the program was made for.
            kv_cache: where the program's layers are.
            output: [T or R, width], is filled.
            inputs: [T, width] each.
            stage_seconds: [stages], is filled if given.

        Returns:
            [R] where each row of logits is largest; empty if the program does not note it.
        """
        return program.run(
            output,
            _int32(batch.token_ids),
            _int32(batch.positions),
            np.ascontiguousarray(batch.slot_mapping, np.int64),
            _int32(batch.query_start),
            _int32(batch.seq_lens),
            _int32(batch.block_tables),
            _int32(batch.logits_indices),
            frequencies,
            inputs,
            None if kv_cache is None else kv_cache.native,
            stage_seconds,
        )


class CompiledDecoder(StepDecoder):
    """A decoder whose forward is a program; made by `CpuBackend.compile`.

    Args:
        backend: runs the program.
        trace: of the decoder's forward.
        logits: what it returned.

    Attributes:
        weights: the matrices that a step multiplies with, in their order; the last one is the head.
    """

    def __init__(self, backend: CpuBackend, trace: Trace, logits: SymbolicArray) -> None:
        self._backend = backend
        no_lengths = np.zeros(0, np.int32)
        # With the radians per position of those that are the same for texts of all lengths.
        self._ropes = tuple(
            (rope, None if depends_on_length(rope) else backend.frequencies(rope, no_lengths))
            for rope in trace.ropes
        )
        self.weights = tuple(trace.weights)
        self._program = backend.new_program(backend.max_rows)
        build(trace, logits, self._program)

    @property
    def scratch_bytes(self) -> int:
        """Memory for what lies between ops."""
        return self._program.scratch_bytes

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`."""
        return self.step(batch, kv_cache).rows

    def step(self, batch: ForwardBatch, kv_cache: KVCache) -> StepLogits:
        assert isinstance(kv_cache, CpuKVCache)
        logits = np.empty((len(batch.logits_indices), self._program.output_width), np.float32)
        if len(batch.token_ids) <= self._program.max_rows:
            return StepLogits(logits, self._run(batch, kv_cache, logits))
        largest = np.empty(len(logits), np.int64)
        for part in slices(batch, self._program.max_rows):
            rows = np.empty((len(part.logits_rows), logits.shape[1]), np.float32)
            largest[part.logits_rows] = self._run(part.batch, kv_cache, rows)
            logits[part.logits_rows] = rows
        return StepLogits(logits, largest.tolist())

    def profile(self, batch: ForwardBatch, kv_cache: CpuKVCache) -> list[tuple[str, float]]:
        """Runs a step of at most `max_rows` rows; the name and the seconds of each stage, that is of
        what runs between two meetings of the threads, in order."""
        names = self._program.stage_names
        seconds = np.zeros(len(names))
        logits = np.empty((len(batch.logits_indices), self._program.output_width), np.float32)
        self._run(batch, kv_cache, logits, seconds)
        return list(zip(names, seconds.tolist(), strict=True))

    def _run(
        self,
        batch: ForwardBatch,
        kv_cache: CpuKVCache,
        logits: Array,
        stage_seconds: npt.NDArray[np.float64] | None = None,
    ) -> list[int]:
        frequencies = [
            self._backend.frequencies(rope, batch.rope_lens) if fixed is None else fixed
            for rope, fixed in self._ropes
        ]
        return self._backend.run(
            self._program, frequencies, batch, kv_cache, logits, stage_seconds=stage_seconds
        )


def _record_linear(
    x: SymbolicArray, weight: LinearWeights | JoinedWeights, notes_largest: bool = False
) -> SymbolicArray:
    """x @ weight.T + bias; of logits, where they are largest may be noted."""
    rows = x.rows
    joined = weight if isinstance(weight, JoinedWeights) else JoinedWeights((weight,))
    x.trace.weights += joined.parts

    def emit(to: ProgramBuilder, x: Sequence[BufferView], y: BufferView, add_to_y: bool) -> None:
        buffer, column = y
        for part, start in zip(joined.parts, joined.starts, strict=True):
            to.program.linear(rows, x[0], part, (buffer, column + start), add_to_y, notes_largest)

    return x.trace.record(
        "linear",
        [x],
        (weight.num_outputs,),
        partial(emit, add_to_y=False),
        accumulate=partial(emit, add_to_y=True),
    )


def _int32(array: IntArray) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(array, np.int32)


def unsupported_shape(config: ModelConfig) -> str | None:
    """What of a model the native kernels do not take, None if they take all of it."""
    if config.head_dim % 8 != 0 or not 8 <= config.head_dim <= 512:
        return f"head_dim={config.head_dim}: native kernels take multiples of 8, at most 512"
    return None


def _float_bits(weight: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """The native name of a float format, and a matrix in it."""
    if weight.dtype.name not in _FLOAT_FORMATS:
        weight = weight.astype(np.float32)
    bits = np.ascontiguousarray(weight)
    if bits.dtype == ml_dtypes.bfloat16:
        bits = bits.view(np.uint16)  # the buffer protocol has no name for it
    return _FLOAT_FORMATS[weight.dtype.name], bits


def _batch_of_rows(num_rows: int, **arrays: IntArray) -> ForwardBatch:
    """A batch that is only rows, for ops that look at one of its arrays or none."""
    zeros, none = np.zeros(num_rows, np.int32), np.zeros(0, np.int32)
    defaults = ForwardBatch(
        token_ids=zeros,
        positions=zeros,
        rope_lens=zeros,
        slot_mapping=zeros,
        query_start=np.zeros(1, np.int32),
        seq_lens=none,
        block_tables=np.zeros((0, 0), np.int32),
        logits_indices=none,
    )
    return replace(defaults, **arrays)
