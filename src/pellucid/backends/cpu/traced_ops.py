"""The ops on symbolic arrays: each records itself as an instruction of a program."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np

from pellucid.backends.base import JoinedHandle
from pellucid.backends.cpu.kv_cache import CpuKVLayer, CpuStateLayer
from pellucid.backends.cpu.tracing import (
    BufferView,
    Emit,
    Heads,
    ProgramBuilder,
    ReceivedRows,
    SymbolicArray,
    SymbolicIndices,
)
from pellucid.backends.cpu.weights import CpuMatrix, CpuStack, DividedWeights, divide
from pellucid.backends.native import Exchange, Indices, LinearWeights, RowSet
from pellucid.backends.ops import ForwardBatch, HostArray, Ops
from pellucid.backends.row_table import TableInFile
from pellucid.facts.model_config import Activation, Gate, GatedDeltaNetConfig, RopeConfig, Router

Rows: TypeAlias = Any  # a SymbolicArray, in place of the contract's HostArray

_INDICES = {"token_ids": Indices.TOKEN_IDS, "positions": Indices.POSITIONS}


class TracedOps(Ops):
    """The ops of a forward that is being traced.

    Attributes:
        exchange: between the processes among which experts are divided; None: there is one process.
    """

    exchange: Exchange | None = None

    def embed(self, token_ids: Any, table: CpuMatrix | TableInFile, scale: float = 1.0) -> Rows:
        if isinstance(table, TableInFile):
            return token_ids.trace.look_up(table.rows, token_ids.name, scale)
        (weights,), exchange, starts = _own_part(table)
        indices = _INDICES[token_ids.name]
        return token_ids.trace.record(
            "embed",
            [],
            (weights.num_inputs,),
            lambda to, _, y: to.program.embed(indices, weights, scale, y, exchange, starts),
            rows=RowSet.TOKENS,
        )

    def received(self, batch: Any, width: int) -> Any:
        if not isinstance(batch.received, SymbolicIndices):
            return super().received(batch, width)
        return batch.received.trace.input(ReceivedRows(), (width,))

    def linear(self, x: Rows, weight: CpuMatrix | JoinedHandle) -> Rows:
        return _product(x, weight)

    def rms_norm(self, x: Rows, weight: HostArray | None, eps: float) -> Rows:
        weights = np.ones(x.shape[-1], np.float32) if weight is None else weight
        rows, num_vectors = x.rows, x.operand.width // len(weights)
        return _in_place(
            "rms_norm",
            [x],
            lambda to, x, y: to.program.rms_norm(rows, x[0], weights, eps, num_vectors, y),
        )

    def layer_norm(self, x: Rows, weight: HostArray, bias: HostArray, eps: float) -> Rows:
        rows, num_vectors = x.rows, x.operand.width // len(weight)
        return _in_place(
            "layer_norm",
            [x],
            lambda to, x, y: to.program.layer_norm(rows, x[0], weight, bias, eps, num_vectors, y),
        )

    def rope(self, x: Rows, batch: ForwardBatch, rope: RopeConfig) -> Rows:
        num_heads, head_dim = x.shape
        rows, rotations = x.rows, x.trace.rotations(rope, x.rows)
        return _in_place(
            "rope",
            [x, rotations],
            lambda to, x, y: to.program.rope(rows, x[0], x[1], num_heads, head_dim, rope.dim, y),
        )

    def activate(self, x: Rows, activation: Activation) -> Rows:
        rows, width = x.rows, x.operand.width
        return _in_place(
            "activate", [x], lambda to, x, y: to.program.activate(rows, x[0], activation, width, y)
        )

    def gated_activate(self, gate_up: Rows, activation: Activation) -> Rows:
        rows, width = gate_up.rows, gate_up.operand.width // 2
        return gate_up.trace.record(
            "gated_activate",
            [gate_up],
            (width,),
            lambda to, x, y: to.program.gated_activate(rows, x[0], activation, width, y),
            can_overwrite=True,
        )

    def multiply(self, x: Rows, gate: Rows, function: Gate = "identity") -> Rows:
        rows, width = x.rows, x.operand.width
        is_one = gate.operand.width == 1 != width
        return _in_place(
            "multiply",
            [x, gate],
            lambda to, x, y: to.program.multiply(rows, x[0], x[1], is_one, function, width, y),
        )

    def scale(self, x: Rows, factors: HostArray) -> Rows:
        rows, width = x.rows, x.operand.width
        return _in_place(
            "scale", [x], lambda to, x, y: to.program.scale(rows, x[0], factors, width, y)
        )

    def causal_convolution(
        self,
        x: Rows,
        weight: HostArray,
        bias: HostArray | None,
        state_layer: CpuStateLayer,
        batch: ForwardBatch,
        activation: Activation | None = None,
    ) -> Rows:
        width, first = x.operand.width, state_layer.first
        y = x.trace.record(
            "convolution",
            [x],
            x.shape,
            lambda to, x, y: to.program.causal_convolution(x[0], weight, bias, width, first, y),
        )
        return y if activation is None else self.activate(y, activation)

    def gated_delta_net(
        self,
        qkv: Rows,
        b: Rows,
        a: Rows,
        log_decay: HostArray,
        step_bias: HostArray,
        net: GatedDeltaNetConfig,
        state_layer: CpuStateLayer,
        batch: ForwardBatch,
    ) -> Rows:
        shape = state_layer.shape
        # Behind the convolution's rows.
        first = state_layer.first + shape.num_rows * shape.num_channels
        return qkv.trace.record(
            "gated_delta_net",
            [qkv, b, a],
            (net.num_value_heads, net.value_dim),
            lambda to, x, y: to.program.gated_delta_net(
                *x,
                log_decay,
                step_bias,
                net.num_key_heads,
                net.num_value_heads,
                net.key_dim,
                net.value_dim,
                net.tiled,
                first,
                y,
            ),
        )

    def route(
        self,
        logits: Rows,
        num_chosen: int,
        router: Router,
        normalize: bool = False,
        scale: float = 1.0,
        bias: HostArray | None = None,
    ) -> Rows:
        rows, num_experts = logits.rows, logits.operand.width
        return logits.trace.record(
            "route",
            [logits],
            (num_experts,),
            lambda to, x, y: to.program.route(
                rows, x[0], bias, num_experts, num_chosen, router, normalize, scale, y
            ),
        )

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
        rows, num_experts = x.rows, weights.operand.width
        exchange, own = self.exchange, slice(None)
        starts: tuple[int, ...] = ()
        if exchange is not None:
            starts = divide(num_experts, exchange.num_ranks)
            own = slice(starts[exchange.rank], starts[exchange.rank + 1])
        x.trace.experts.append((gate[own], up[own], down[own]))

        def emit(
            to: ProgramBuilder, x: Sequence[BufferView], y: BufferView, add_to_y: bool
        ) -> None:
            experts = to.experts(num_experts, num_chosen, exchange, starts)
            experts.expert_mlp(rows, x[0], x[1], gate, up, down, activation, y, add_to_y)

        return x.trace.record(
            "expert_mlp",
            [x, weights],
            x.shape,
            partial(emit, add_to_y=False),
            accumulate=partial(emit, add_to_y=True),
        )

    def store_kv(self, kv_layer: CpuKVLayer, k: Rows, v: Rows, batch: ForwardBatch) -> None:
        (num_all, head_dim), num_own = k.shape, kv_layer.num_kv_heads
        own = self._own_heads(num_all, num_own)
        k.trace.record_effect(
            "store_kv",
            [k[:, own], v[:, own]],
            lambda to, x, _: to.program.store_kv(
                kv_layer.index, x[0], x[1], num_own, head_dim, kv_layer.group
            ),
        )

    def paged_attention(
        self,
        q: Rows,
        kv_layer: CpuKVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: HostArray | None = None,
    ) -> Rows:
        """Of this process's heads; it gets the others' outputs."""
        rows, (num_all, head_dim), exchange = q.rows, q.shape, self.exchange
        own = self._own_heads(num_all, kv_layer.num_heads)
        heads = Heads(kv_layer.num_heads, kv_layer.num_kv_heads, head_dim, kv_layer.max_seq_len)
        own_sinks = None if sinks is None else np.ascontiguousarray(sinks[own])
        first, width = own.start * head_dim, kv_layer.num_heads * head_dim

        def emit(to: ProgramBuilder, x: Sequence[BufferView], y: BufferView) -> None:
            buffer, column = y
            to.attention(heads).paged_attention(
                rows,
                kv_layer.index,
                x[0],
                scale,
                sliding_window,
                softcap,
                own_sinks,
                (buffer, column + first),
                kv_layer.group,
            )
            if exchange is not None and kv_layer.num_heads < num_all:
                parts = [(rank, rank * width, width) for rank in range(exchange.num_ranks)]
                to.program.exchange(rows, y, exchange, parts)

        return q.trace.record("attention", [q[:, own]], q.shape, emit)

    def _own_heads(self, num_all: int, num_own: int) -> slice:
        """This process's share of so many heads."""
        if self.exchange is None or num_own == num_all:
            return slice(0, num_all)
        return slice(self.exchange.rank * num_own, (self.exchange.rank + 1) * num_own)

    def logits(self, x: Rows, weight: CpuMatrix, softcap: float | None = None) -> Rows:
        notes_largest = x.rows is RowSet.LOGITS  # not where the op runs alone
        rows, width = x.rows, weight.num_outputs
        if softcap is None and not isinstance(weight, DividedWeights):
            plain = _product(x, weight, notes_largest)
            if notes_largest:
                _draw(plain, width)
            return plain
        logits = self.linear(x, weight)
        if softcap is not None:
            logits = _in_place(
                "softcap",
                [logits],
                lambda to, x, y: to.program.softcap(rows, x[0], softcap, width, y),
            )
        if notes_largest:
            x.trace.record_effect(
                "largest", [logits], lambda to, x, _: to.program.largest(x[0], width)
            )
            _draw(logits, width)
        return logits


def _own_part(
    weight: CpuMatrix | JoinedHandle,
) -> tuple[Sequence[LinearWeights], Exchange | None, tuple[int, ...]]:
    """This process's rows of a matrix, and how they are divided."""
    if isinstance(weight, DividedWeights):
        return weight.parts, weight.exchange, weight.starts
    return weight.parts if isinstance(weight, JoinedHandle) else [weight], None, ()


def _product(
    x: SymbolicArray, weight: CpuMatrix | JoinedHandle, notes_largest: bool = False
) -> SymbolicArray:
    """x @ weight.T + bias; for logits of one process, the place of the largest may be recorded as well."""
    rows = x.rows
    parts, exchange, starts = _own_part(weight)
    first = 0 if exchange is None else starts[exchange.rank]
    *columns, end = accumulate((each.num_outputs for each in parts), initial=first)
    num_outputs = end if exchange is None else starts[-1]
    exchanged = [(rank, begin, end - begin) for rank, (begin, end) in enumerate(pairwise(starts))]
    x.trace.weights[rows].extend(parts)

    def emit(to: ProgramBuilder, x: Sequence[BufferView], y: BufferView, add_to_y: bool) -> None:
        buffer, first = y
        for own, column in zip(parts, columns, strict=True):
            to.program.linear(rows, x[0], own, (buffer, first + column), add_to_y, notes_largest)
        if exchange is not None:
            to.program.exchange(rows, y, exchange, exchanged)

    return x.trace.record(
        "linear",
        [x],
        (num_outputs,),
        partial(emit, add_to_y=False),
        accumulate=partial(emit, add_to_y=True),
    )


def _in_place(name: str, inputs: Sequence[SymbolicArray], emit: Emit) -> SymbolicArray:
    """Records an op whose result has the shape of its first input, and may overwrite it."""
    first = inputs[0]
    return first.trace.record(name, inputs, first.shape, emit, can_overwrite=True)


def _draw(logits: SymbolicArray, width: int) -> None:
    """Draws tokens; the place of the largest logit of each row has been recorded before."""
    logits.trace.record_effect("draw", [logits], lambda to, x, _: to.program.draw(x[0], width))
