"""The ops on native kernels.

Given arrays, an op runs at once, as a program of its own. Given the symbolic arrays of a trace, it
records itself (`traced_ops.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from pellucid.backends import traced_ops
from pellucid.backends.cpu_kv_cache import CpuKVCache, CpuKVLayer, CpuStateLayer
from pellucid.backends.cpu_weights import CpuStack, JoinedWeights
from pellucid.backends.native import LinearWeights, Program
from pellucid.backends.ops import Array, ForwardBatch, IntArray, Ops
from pellucid.backends.program_decoder import radians, run_program
from pellucid.backends.row_table import TableInFile, embed_rows
from pellucid.backends.tracing import SymbolicArray, SymbolicIndices, Trace, build
from pellucid.facts.model_config import Activation, Gate, GatedDeltaNetConfig, RopeConfig, Router

Rows: TypeAlias = Any  # an Array, or a SymbolicArray while a forward is traced


class CpuOps(Ops):
    """The ops on native kernels, in f32 between ops.

    Args:
        new_program: makes an empty program for steps of at most so many tokens.
    """

    def __init__(self, new_program: Callable[[int], Program]) -> None:
        self._new_program = new_program

    def embed(self, token_ids: Any, table: LinearWeights | TableInFile, scale: float = 1.0) -> Rows:
        if isinstance(table, TableInFile):
            if isinstance(token_ids, SymbolicIndices):
                return traced_ops.look_up(token_ids, table, scale)
            return embed_rows(table.rows, token_ids, scale)
        if not isinstance(token_ids, SymbolicIndices):
            batch = _batch_of_rows(len(token_ids), token_ids=token_ids)
            return self._run_alone(
                lambda trace: self.embed(SymbolicIndices(trace, "token_ids"), table, scale), batch
            )
        return traced_ops.embed(token_ids, table, scale)

    def linear(self, x: Rows, weight: LinearWeights | JoinedWeights) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.linear(x, weight), x)
        return traced_ops.linear(x, weight)

    def rms_norm(self, x: Rows, weight: Array | None, eps: float) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.rms_norm(x, weight, eps), x)
        return traced_ops.rms_norm(x, weight, eps)

    def layer_norm(self, x: Rows, weight: Array, bias: Array, eps: float) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.layer_norm(x, weight, bias, eps), x)
        return traced_ops.layer_norm(x, weight, bias, eps)

    def rope(self, x: Rows, batch: ForwardBatch, rope: RopeConfig) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.rope(x, batch, rope), x, batch=batch)
        return traced_ops.rope(x, rope)

    def activate(self, x: Rows, activation: Activation) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.activate(x, activation), x)
        return traced_ops.activate(x, activation)

    def gated_activate(self, gate_up: Rows, activation: Activation) -> Rows:
        if not isinstance(gate_up, SymbolicArray):
            return self._run_on(lambda x: self.gated_activate(x, activation), gate_up)
        return traced_ops.gated_activate(gate_up, activation)

    def multiply(self, x: Rows, gate: Rows, function: Gate = "identity") -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x, gate: self.multiply(x, gate, function), x, gate)
        return traced_ops.multiply(x, gate, function)

    def scale(self, x: Rows, factors: Array) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(lambda x: self.scale(x, factors), x)
        return traced_ops.scale(x, factors)

    def causal_convolution(
        self,
        x: Rows,
        weight: Array,
        bias: Array | None,
        state_layer: CpuStateLayer,
        batch: ForwardBatch,
        activation: Activation | None = None,
    ) -> Rows:
        if not isinstance(x, SymbolicArray):
            return self._run_on(
                lambda x: self.causal_convolution(x, weight, bias, state_layer, batch, activation),
                x,
                batch=batch,
                kv_cache=state_layer.cache,
            )
        y = traced_ops.causal_convolution(x, weight, bias, state_layer)
        return y if activation is None else traced_ops.activate(y, activation)

    def gated_delta_net(
        self,
        qkv: Rows,
        b: Rows,
        a: Rows,
        log_decay: Array,
        step_bias: Array,
        net: GatedDeltaNetConfig,
        state_layer: CpuStateLayer,
        batch: ForwardBatch,
    ) -> Rows:
        if not isinstance(qkv, SymbolicArray):
            return self._run_on(
                lambda qkv, b, a: self.gated_delta_net(
                    qkv, b, a, log_decay, step_bias, net, state_layer, batch
                ),
                qkv,
                b,
                a,
                batch=batch,
                kv_cache=state_layer.cache,
            )
        return traced_ops.gated_delta_net(qkv, b, a, log_decay, step_bias, net, state_layer)

    def route(
        self,
        logits: Rows,
        num_chosen: int,
        router: Router,
        normalize: bool = False,
        scale: float = 1.0,
        bias: Array | None = None,
    ) -> Rows:
        if not isinstance(logits, SymbolicArray):
            return self._run_on(
                lambda x: self.route(x, num_chosen, router, normalize, scale, bias), logits
            )
        return traced_ops.route(logits, num_chosen, router, normalize, scale, bias)

    def expert_mlp(
        self,
        x: Rows,
        weights: Rows,
        num_chosen: int,
        gate: CpuStack,
        up: CpuStack,
        down: CpuStack,
        activation: Activation,
    ) -> Rows:
        if not isinstance(x, SymbolicArray):
            assert (np.count_nonzero(weights, axis=-1) <= num_chosen).all()
            return self._run_on(
                lambda x, weights: self.expert_mlp(
                    x, weights, num_chosen, gate, up, down, activation
                ),
                x,
                weights,
            )
        return traced_ops.expert_mlp(x, weights, num_chosen, gate, up, down, activation)

    def store_kv(self, kv_layer: CpuKVLayer, k: Rows, v: Rows, slot_mapping: IntArray) -> None:
        if not isinstance(k, SymbolicArray):
            batch = _batch_of_rows(
                len(k),
                slot_mapping=slot_mapping,
                block_tables=np.zeros((len(slot_mapping), 0, 0), np.int32),
            )
            self._run_on(
                lambda k, v: self.store_kv(kv_layer, k, v, slot_mapping),
                k,
                v,
                batch=batch,
                kv_cache=kv_layer.cache,
            )
            return
        traced_ops.store_kv(kv_layer, k, v)

    def paged_attention(
        self,
        q: Rows,
        kv_layer: CpuKVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
    ) -> Rows:
        if not isinstance(q, SymbolicArray):
            return self._run_on(
                lambda q: self.paged_attention(
                    q, kv_layer, batch, scale, sliding_window, softcap, sinks
                ),
                q,
                batch=batch,
                kv_cache=kv_layer.cache,
            )
        return traced_ops.paged_attention(q, kv_layer, scale, sliding_window, softcap, sinks)

    def logits(self, x: Rows, weight: LinearWeights, softcap: float | None = None) -> Rows:
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
        frequencies = [radians(rope, batch.rope_lens) for rope in trace.ropes]
        run_program(program, frequencies, batch, kv_cache, output, inputs)
        return output if result is None else output.reshape(num_rows, *result.shape)


def _batch_of_rows(num_rows: int, **arrays: IntArray) -> ForwardBatch:
    """A batch that is only rows, for ops that look at one of its arrays or none."""
    zeros, none = np.zeros(num_rows, np.int32), np.zeros(0, np.int32)
    defaults = ForwardBatch(
        token_ids=zeros,
        positions=zeros,
        rope_lens=zeros,
        slot_mapping=zeros[None],
        query_start=np.zeros(1, np.int32),
        seq_lens=none,
        block_tables=np.zeros((1, 0, 0), np.int32),
        logits_indices=none,
        state_slots=none,
    )
    return replace(defaults, **arrays)
