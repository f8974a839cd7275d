"""The ops on symbolic arrays: each records itself as an instruction of a program."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from pellucid.backends.cpu_kv_cache import CpuKVLayer, CpuStateLayer
from pellucid.backends.cpu_weights import CpuStack, JoinedWeights
from pellucid.backends.native import Indices, LinearWeights, RowSet
from pellucid.backends.ops import Array
from pellucid.backends.row_table import TableInFile
from pellucid.backends.tracing import (
    BufferView,
    Emit,
    Heads,
    ProgramBuilder,
    SymbolicArray,
    SymbolicIndices,
)
from pellucid.facts.model_config import Activation, Gate, GatedDeltaNetConfig, RopeConfig, Router

_INDICES = {"token_ids": Indices.TOKEN_IDS, "positions": Indices.POSITIONS}


def embed(token_ids: SymbolicIndices, table: LinearWeights, scale: float) -> SymbolicArray:
    indices = _INDICES[token_ids.name]
    return token_ids.trace.record(
        "embed",
        [],
        (table.num_inputs,),
        lambda to, _, y: to.program.embed(indices, table, scale, y),
        rows=RowSet.TOKENS,
    )


def look_up(token_ids: SymbolicIndices, table: TableInFile, scale: float) -> SymbolicArray:
    """Rows of a table in a file: the decoder reads them before each step."""
    return token_ids.trace.look_up(table.rows, token_ids.name, scale)


def linear(
    x: SymbolicArray, weight: LinearWeights | JoinedWeights, notes_largest: bool = False
) -> SymbolicArray:
    """x @ weight.T + bias; for logits, the place of the largest may be recorded as well."""
    rows = x.rows
    joined = weight if isinstance(weight, JoinedWeights) else JoinedWeights((weight,))
    x.trace.weights[rows].extend(joined.parts)

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


def _in_place(name: str, inputs: Sequence[SymbolicArray], emit: Emit) -> SymbolicArray:
    """Records an op whose result has the shape of its first input, and may overwrite it."""
    first = inputs[0]
    return first.trace.record(name, inputs, first.shape, emit, can_overwrite=True)


def rms_norm(x: SymbolicArray, weight: Array | None, eps: float) -> SymbolicArray:
    weights = np.ones(x.shape[-1], np.float32) if weight is None else weight
    rows, num_vectors = x.rows, x.operand.width // len(weights)
    return _in_place(
        "rms_norm",
        [x],
        lambda to, x, y: to.program.rms_norm(rows, x[0], weights, eps, num_vectors, y),
    )


def layer_norm(x: SymbolicArray, weight: Array, bias: Array, eps: float) -> SymbolicArray:
    rows, num_vectors = x.rows, x.operand.width // len(weight)
    return _in_place(
        "layer_norm",
        [x],
        lambda to, x, y: to.program.layer_norm(rows, x[0], weight, bias, eps, num_vectors, y),
    )


def rope(x: SymbolicArray, table: RopeConfig) -> SymbolicArray:
    num_heads, head_dim = x.shape
    rows, rotations = x.rows, x.trace.rotations(table, x.rows)
    return _in_place(
        "rope",
        [x, rotations],
        lambda to, x, y: to.program.rope(rows, x[0], x[1], num_heads, head_dim, table.dim, y),
    )


def activate(x: SymbolicArray, activation: Activation) -> SymbolicArray:
    rows, width = x.rows, x.operand.width
    return _in_place(
        "activate", [x], lambda to, x, y: to.program.activate(rows, x[0], activation, width, y)
    )


def gated_activate(gate_up: SymbolicArray, activation: Activation) -> SymbolicArray:
    rows, width = gate_up.rows, gate_up.operand.width // 2
    return gate_up.trace.record(
        "gated_activate",
        [gate_up],
        (width,),
        lambda to, x, y: to.program.gated_activate(rows, x[0], activation, width, y),
        can_overwrite=True,
    )


def multiply(x: SymbolicArray, gate: SymbolicArray, function: Gate) -> SymbolicArray:
    rows, width = x.rows, x.operand.width
    is_one = gate.operand.width == 1 != width
    return _in_place(
        "multiply",
        [x, gate],
        lambda to, x, y: to.program.multiply(rows, x[0], x[1], is_one, function, width, y),
    )


def scale(x: SymbolicArray, factors: Array) -> SymbolicArray:
    rows, width = x.rows, x.operand.width
    return _in_place("scale", [x], lambda to, x, y: to.program.scale(rows, x[0], factors, width, y))


def causal_convolution(
    x: SymbolicArray, weight: Array, bias: Array | None, state_layer: CpuStateLayer
) -> SymbolicArray:
    width = x.operand.width
    return x.trace.record(
        "convolution",
        [x],
        x.shape,
        lambda to, x, y: to.program.causal_convolution(
            x[0], weight, bias, width, state_layer.first, y
        ),
    )


def gated_delta_net(
    qkv: SymbolicArray,
    b: SymbolicArray,
    a: SymbolicArray,
    log_decay: Array,
    step_bias: Array,
    net: GatedDeltaNetConfig,
    state_layer: CpuStateLayer,
) -> SymbolicArray:
    shape = state_layer.shape
    first = state_layer.first + shape.num_rows * shape.num_channels  # behind the convolution's rows
    return qkv.trace.record(
        "gated_delta_net",
        [qkv, b, a],
        (net.num_value_heads, net.value_dim),
        lambda to, x, y: to.program.gated_delta_net(
            x[0],
            x[1],
            x[2],
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
    logits: SymbolicArray,
    num_chosen: int,
    router: Router,
    normalize: bool,
    scale: float,
    bias: Array | None,
) -> SymbolicArray:
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
    x: SymbolicArray,
    weights: SymbolicArray,
    num_chosen: int,
    gate: CpuStack,
    up: CpuStack,
    down: CpuStack,
    activation: Activation,
) -> SymbolicArray:
    rows = x.rows
    x.trace.experts.append((gate, up, down))

    def emit(to: ProgramBuilder, x: Sequence[BufferView], y: BufferView, add_to_y: bool) -> None:
        experts = to.experts(weights.operand.width, num_chosen)
        experts.expert_mlp(rows, x[0], x[1], gate, up, down, activation, y, add_to_y)

    return x.trace.record(
        "expert_mlp",
        [x, weights],
        x.shape,
        partial(emit, add_to_y=False),
        accumulate=partial(emit, add_to_y=True),
    )


def store_kv(kv_layer: CpuKVLayer, k: SymbolicArray, v: SymbolicArray) -> None:
    num_kv_heads, head_dim = k.shape
    k.trace.record_effect(
        "store_kv",
        [k, v],
        lambda to, x, _: to.program.store_kv(
            kv_layer.index, x[0], x[1], num_kv_heads, head_dim, kv_layer.group
        ),
    )


def paged_attention(
    q: SymbolicArray,
    kv_layer: CpuKVLayer,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Array | None,
) -> SymbolicArray:
    rows, (num_heads, head_dim) = q.rows, q.shape
    heads = Heads(num_heads, kv_layer.num_kv_heads, head_dim, kv_layer.max_seq_len)
    return q.trace.record(
        "attention",
        [q],
        q.shape,
        lambda to, x, y: to.attention(heads).paged_attention(
            rows, kv_layer.index, x[0], scale, sliding_window, softcap, sinks, y, kv_layer.group
        ),
    )


def logits(x: SymbolicArray, weight: LinearWeights, softcap: float | None) -> SymbolicArray:
    notes_largest = x.rows is RowSet.LOGITS  # not where the op runs alone
    rows, width = x.rows, weight.num_outputs
    if softcap is None:
        plain = linear(x, weight, notes_largest)
        if notes_largest:
            _draw(plain, width)
        return plain
    capped = x.trace.record(
        "softcap",
        [linear(x, weight)],
        (width,),
        lambda to, x, y: to.program.softcap(rows, x[0], softcap, width, y),
        can_overwrite=True,
    )
    if notes_largest:
        x.trace.record_effect("largest", [capped], lambda to, x, _: to.program.largest(x[0], width))
        _draw(capped, width)
    return capped


def _draw(logits: SymbolicArray, width: int) -> None:
    """Draws tokens; the place of the largest logit of each row has been recorded before."""
    logits.trace.record_effect("draw", [logits], lambda to, x, _: to.program.draw(x[0], width))
