"""The ops on native kernels.

Given arrays, an op runs at once, as a program of its own. Given the symbolic arrays of a trace, it
records itself (`traced_ops.py`): `compile` traces a decoder's forward once and from then on replays it as
one native call per step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends import traced_ops
from pellucid.backends.arithmetic_identity import extension_identity
from pellucid.backends.base import Array, Decoder, ForwardBatch, IntArray
from pellucid.backends.compiled_decoder import CompiledDecoder, run_program
from pellucid.backends.cpu_kv_cache import (
    CpuKVCache,
    CpuKVLayer,
    TracedKVCache,
    make_cpu_kv_cache,
)
from pellucid.backends.cpu_weights import CpuWeights, JoinedWeights
from pellucid.backends.joined_matrix import WeightMatrix
from pellucid.backends.native import (
    LinearWeights,
    Program,
    ThreadPool,
    find_kernels,
    kv_bytes_per_block,
)
from pellucid.backends.numpy_backend import NumpyBackend
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.thread_limiter import ThreadLimiter
from pellucid.backends.tracing import SymbolicArray, SymbolicIndices, Trace, build, symbolic_batch
from pellucid.config import Activation, ModelConfig, RopeConfig

# Rows that a program computes at a time; a longer step is cut. It bounds the memory for what lies
# between ops, keeps most of it in cache, and is enough to read the weights once for many rows.
MAX_ROWS = 512

# Threads must wake and then meet some tens of times, which takes about as long as one of them takes
# to go through a few megabytes of weights: smaller steps stay on the caller's thread.
SMALL_STEP_BYTES = 4 << 20

Rows: TypeAlias = Any  # an Array, or a SymbolicArray while a forward is traced


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
        self._weights = CpuWeights(self.kernels, self.pool, quantize_activations)

    @property
    def identity(self) -> str:
        return f"cpu {self.kernels.isa} {extension_identity()}"

    # -- load time --------------------------------------------------------------------------------

    def expect_weights(self, num_bytes: int) -> None:
        self._weights.expect(num_bytes)

    @property
    def waiting_bytes(self) -> int:
        return self._weights.waiting_bytes

    def read_weights(self) -> int:
        return self._weights.read()

    def matrix(  # type: ignore[override]  # the handle is opaque
        self, weight: WeightMatrix, bias: npt.NDArray[Any] | None = None
    ) -> LinearWeights | JoinedWeights:
        return self._weights.pack(weight, None if bias is None else self.vector(bias))

    def quantize(self, weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
        return self._weights.quantize(weight, weight_format)

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

    def compile(self, decoder: Decoder, config: ModelConfig) -> CompiledDecoder:
        """`decoder` as one native call per step. Allocates what a step needs between ops."""
        trace = Trace()
        handles: Any = TracedKVCache(config)  # a cache only as far as forward looks
        logits: Any = decoder.forward(symbolic_batch(trace), handles)
        self._weights.finish()
        return CompiledDecoder(
            trace,
            logits,
            self._new_program(self.max_rows),
            self._radians,
            before_step=ThreadLimiter(self.pool).update,
        )

    # -- per step ---------------------------------------------------------------------------------

    def embed(self, token_ids: Any, table: LinearWeights, scale: float = 1.0) -> Rows:  # type: ignore[override]
        if not isinstance(token_ids, SymbolicIndices):
            batch = _batch_of_rows(len(token_ids), token_ids=token_ids)
            return self._run_alone(
                lambda trace: self.embed(SymbolicIndices(trace, "token_ids"), table, scale), batch
            )
        return traced_ops.embed(token_ids, table, scale)

    def linear(self, x: Rows, weight: LinearWeights | JoinedWeights) -> Rows:  # type: ignore[override]
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.linear(x, weight), x)
        return traced_ops.linear(x, weight)

    def rms_norm(self, x: Rows, weight: Array, eps: float) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.rms_norm(x, weight, eps), x)
        return traced_ops.rms_norm(x, weight, eps)

    def layer_norm(self, x: Rows, weight: Array, bias: Array, eps: float) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.layer_norm(x, weight, bias, eps), x)
        return traced_ops.layer_norm(x, weight, bias, eps)

    def rope(self, x: Rows, batch: ForwardBatch, table: RopeConfig) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.rope(x, batch, table), x, batch=batch)
        return traced_ops.rope(x, table)

    def activate(self, x: Rows, activation: Activation) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.activate(x, activation), x)
        return traced_ops.activate(x, activation)

    def gated_activate(self, gate_up: Rows, activation: Activation) -> Rows:
        if not isinstance(gate_up, SymbolicArray):
            return self._run_on(lambda x: self.gated_activate(x, activation), gate_up)
        return traced_ops.gated_activate(gate_up, activation)

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
        traced_ops.store_kv(kv_layer, k, v)

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
        return traced_ops.paged_attention(q, kv_layer, scale, sliding_window, softcap)

    def logits(self, x: Rows, weight: LinearWeights, softcap: float | None = None) -> Rows:  # type: ignore[override]
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.logits(x, weight, softcap), x)
        return traced_ops.logits(x, weight, softcap)

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
        program = self._new_program(max(num_rows, 1))
        build(trace, result, program)
        output = np.empty((num_rows, program.output_width), np.float32)
        frequencies = [self._radians(rope, batch.rope_lens) for rope in trace.ropes]
        run_program(program, frequencies, batch, kv_cache, output, inputs)
        return output if result is None else output.reshape(num_rows, *result.shape)

    def _new_program(self, max_rows: int) -> Program:
        """An empty program for steps of at most `max_rows` tokens."""
        return Program(self.kernels, self.pool, max_rows, self.small_step_bytes)

    def _radians(self, rope: RopeConfig, lengths: IntArray) -> Array:
        """Radians per position, [T, dim / 2], or [1, dim / 2] if the same for every length [T] of text."""
        return self._frequencies(rope, lengths)[0]


def unsupported_shape(config: ModelConfig) -> str | None:
    """What of a model the native kernels do not take, None if they take all of it."""
    if config.head_dim % 8 != 0 or not 8 <= config.head_dim <= 512:
        return f"head_dim={config.head_dim}: native kernels take multiples of 8, at most 512"
    return None


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
