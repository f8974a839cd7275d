"""The executable definition of every op: NumPy, written to be read. Native kernels are tested against it.

A row's bits must not depend on the other rows of its step, but a BLAS sums in another order for another
shape, and in some shapes for another row. So no product here has a shape that the step decides. In
`linear`, tiles of 16 rows are the columns of a product, side by side in SIMD lanes, where every BLAS
treats them alike (tests/unit/test_numpy_row_invariance.py watches this one). Attention works on tiles of
16 positions that start at multiples of 16, whichever of them are in the step, so a row's place in each
product follows from its position alone. Sums run along a last axis that is contiguous, for NumPy adds in the
order of memory, and whose length is a fact of the model or of the row's own position.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import JoinedHandle
from pellucid.backends.numpy.kv_cache import NumpyKVLayer, NumpyStateLayer
from pellucid.backends.numpy.quantized import NumpyQuantizedMatrix
from pellucid.backends.numpy.weights import (
    NumpyStack,
    NumpyWeight,
)
from pellucid.backends.ops import ForwardBatch, HostArray, IntArray, Ops
from pellucid.backends.rope_frequencies import frequency_rows
from pellucid.backends.row_table import TableInFile, embed_rows
from pellucid.facts.model_config import Activation, Gate, GatedDeltaNetConfig, RopeConfig, Router

_SWISH_LIMIT = 7.0
TILE = 16  # rows that go through a matrix product together


class NumpyOps(Ops):
    """The ops on NumPy arrays.

    Args:
        dtype: of arrays between ops, float32 or float64.
    """

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self.dtype = dtype

    def embed(
        self, token_ids: IntArray, table: NumpyWeight | TableInFile, scale: float = 1.0
    ) -> HostArray:
        assert not isinstance(table, JoinedHandle)
        if isinstance(table, TableInFile):
            return embed_rows(table.rows, token_ids, scale, self.dtype)
        if isinstance(table, NumpyQuantizedMatrix):
            return np.asarray(table.embed(token_ids).astype(self.dtype) * scale)
        return np.asarray(table.weight[token_ids] * scale)

    def linear(self, x: HostArray, weight: NumpyWeight) -> HostArray:
        if isinstance(weight, JoinedHandle):
            return np.concatenate([self.linear(x, part) for part in weight.parts], axis=-1)
        if isinstance(weight, NumpyQuantizedMatrix):
            return weight.linear(x)
        num_outputs, num_inputs = weight.weight.shape
        num_tiles = -(-len(x) // TILE)
        padded = np.zeros((num_tiles * TILE, num_inputs), self.dtype)
        padded[: len(x)] = x
        columns = padded.reshape(num_tiles, TILE, num_inputs).transpose(0, 2, 1)
        rows = np.ascontiguousarray((weight.weight @ columns).transpose(0, 2, 1))
        y: HostArray = rows.reshape(num_tiles * TILE, num_outputs)[: len(x)]
        return y if weight.bias is None else y + weight.bias

    def rms_norm(self, x: HostArray, weight: HostArray | None, eps: float) -> HostArray:
        mean_square = np.square(x, order="C").mean(axis=-1, keepdims=True)
        normed = np.asarray(x / np.sqrt(mean_square + eps))
        return normed if weight is None else normed * weight

    def layer_norm(self, x: HostArray, weight: HostArray, bias: HostArray, eps: float) -> HostArray:
        x = np.ascontiguousarray(x)
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centered).mean(axis=-1, keepdims=True)
        return np.asarray(centered / np.sqrt(variance + eps) * weight + bias)

    def rope(self, x: HostArray, batch: ForwardBatch, rope: RopeConfig) -> HostArray:
        inv_freq, attention_factor = frequency_rows(rope, batch.rope_lens, self.dtype)
        angles = batch.positions[:, None].astype(self.dtype) * inv_freq
        factor: Any = attention_factor
        if rope.growth is not None:
            periods = batch.positions // rope.growth.period
            growth = 1 + rope.growth.beta * np.log1p(periods[:, None].astype(self.dtype))
            factor = attention_factor * growth  # [T, 1]
        cos = (np.cos(angles) * factor)[:, None, :]  # [T, 1, dim / 2]
        sin = (np.sin(angles) * factor)[:, None, :]
        half = rope.dim // 2
        first, second, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
        rotated = (first * cos - second * sin, second * cos + first * sin)
        return np.concatenate((*rotated, rest), axis=-1)

    def activate(self, x: HostArray, activation: Activation) -> HostArray:
        match activation:
            case "silu":  # x / (1 + exp(-x)), with an exponential that cannot overflow
                decay = np.exp(-np.abs(x))
                return np.asarray(x * np.where(x < 0, decay, 1) / (1 + decay))
            case "gelu":
                erf = np.vectorize(math.erf, otypes=[self.dtype])
                return np.asarray(0.5 * x * (1 + erf(x * self.dtype(math.sqrt(0.5)))))
            case "gelu_tanh":  # Hendrycks, Gimpel 2016
                inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
                return np.asarray(0.5 * x * (1 + np.tanh(inner)))
            case "clamped_swish":
                gate = np.minimum(x, _SWISH_LIMIT)
                return np.asarray(gate * _sigmoid(1.702 * gate), x.dtype)

    def gated_activate(self, gate_up: HostArray, activation: Activation) -> HostArray:
        half = gate_up.shape[1] // 2
        up = gate_up[:, half:]
        if activation == "clamped_swish":
            up = np.clip(up, -_SWISH_LIMIT, _SWISH_LIMIT) + 1
        return self.activate(gate_up[:, :half], activation) * up

    def multiply(self, x: HostArray, gate: HostArray, function: Gate = "identity") -> HostArray:
        if function == "identity":
            factor = gate
        elif function == "sigmoid":
            factor = _sigmoid(gate)
        else:
            factor = self.activate(gate, function)
        return np.asarray(x * factor)

    def scale(self, x: HostArray, factors: HostArray) -> HostArray:
        return x * factors

    def causal_convolution(
        self,
        x: HostArray,
        weight: HostArray,
        bias: HostArray | None,
        state_layer: NumpyStateLayer,
        batch: ForwardBatch,
        activation: Activation | None = None,
    ) -> HostArray:
        taps = weight.reshape(-1, x.shape[1])  # [K, C]
        outputs = []
        for rows, slot, is_first in _requests(x, batch):
            before = state_layer.rows[slot]
            padded = np.concatenate((np.zeros_like(before) if is_first else before, rows))
            state_layer.rows[slot] = padded[len(rows) :]
            y = np.zeros_like(rows) if bias is None else np.tile(bias, (len(rows), 1))
            for k, factors in enumerate(taps):
                y = y + padded[k : k + len(rows)] * factors
            outputs.append(y)
        y = np.concatenate(outputs)
        return y if activation is None else self.activate(y, activation)

    def gated_delta_net(
        self,
        qkv: HostArray,
        b: HostArray,
        a: HostArray,
        log_decay: HostArray,
        step_bias: HostArray,
        net: GatedDeltaNetConfig,
        state_layer: NumpyStateLayer,
        batch: ForwardBatch,
    ) -> HostArray:
        num_heads, keys, num_rows = net.num_value_heads, net.keys_width, len(qkv)
        q, k = (
            _repeated(_unit(part.reshape(num_rows, net.num_key_heads, net.key_dim)), net)
            for part in (qkv[:, :keys], qkv[:, keys : 2 * keys])
        )
        q = q * self.dtype(net.key_dim**-0.5)
        v = qkv[:, 2 * keys :].reshape(num_rows, num_heads, net.value_dim)
        beta = _sigmoid(b)[..., None]
        decay = np.exp(log_decay * _softplus(a + step_bias))[..., None, None]
        output = np.empty_like(v)
        for rows, slot, is_first in _requests(np.arange(num_rows), batch):
            matrices = state_layer.matrices[slot]  # [Hv, dk, dv], a view
            if is_first:
                matrices[:] = 0
            for row in rows:
                matrices *= decay[row]
                error = v[row] - (matrices * k[row][..., None]).sum(axis=1)
                matrices += k[row][..., None] * (beta[row] * error)[:, None]
                output[row] = (matrices * q[row][..., None]).sum(axis=1)
        return output

    def route(
        self,
        logits: HostArray,
        num_chosen: int,
        router: Router,
        normalize: bool = False,
        scale: float = 1.0,
        bias: HostArray | None = None,
    ) -> HostArray:
        is_finite = np.isfinite(logits).all(axis=-1, keepdims=True)
        logits = np.where(is_finite, logits, 0)
        scores = _sigmoid(logits) if router == "sigmoid" else logits
        ranked = scores if bias is None else scores + bias
        # A stable sort of what is negated: of equal scores the lowest expert comes first.
        order = np.argsort(-ranked, axis=-1, kind="stable")
        is_chosen = np.zeros(logits.shape, np.bool_)
        np.put_along_axis(is_chosen, order[:, :num_chosen], True, axis=-1)
        match router:
            case "softmax":
                scores = _softmax(logits)
            case "softmax_chosen":
                scores = _softmax(np.where(is_chosen, logits, -np.inf))
        weights = np.where(is_chosen, scores, 0)
        if normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return np.asarray(np.where(is_chosen & ~is_finite, np.nan, weights * scale), self.dtype)

    def expert_mlp(
        self,
        x: HostArray,
        weights: HostArray,
        num_chosen: int,
        gate: NumpyStack,
        up: NumpyStack,
        down: NumpyStack,
        activation: Activation,
    ) -> HostArray:
        assert (np.count_nonzero(weights, axis=-1) <= num_chosen).all()
        y = np.zeros_like(x)
        for expert in range(len(gate)):
            rows = np.flatnonzero(weights[:, expert])
            if rows.size:
                gate_up = self.linear(x[rows], gate[expert]), self.linear(x[rows], up[expert])
                inner = self.gated_activate(np.concatenate(gate_up, axis=1), activation)
                y[rows] += weights[rows, expert, None] * self.linear(inner, down[expert])
        return y

    def store_kv(
        self, kv_layer: NumpyKVLayer, k: HostArray, v: HostArray, batch: ForwardBatch
    ) -> None:
        kv_layer.write(k, v, batch)

    def paged_attention(
        self,
        q: HostArray,
        kv_layer: NumpyKVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: HostArray | None = None,
    ) -> HostArray:
        if len(q) == 0:
            return q
        requests = zip(
            np.split(q * self.dtype(scale), batch.query_start[1:-1]),
            batch.seq_lens.tolist(),
            batch.block_tables[kv_layer.group],
            batch.state_slots.tolist(),
            strict=True,
        )
        return np.concatenate(
            [
                self._attend(rows, kv_layer, table, slot, seq_len, sliding_window, softcap, sinks)
                for rows, seq_len, table, slot in requests
            ]
        )

    def _attend(
        self,
        q: HostArray,
        kv_layer: NumpyKVLayer,
        block_table: IntArray,
        slot: int,
        seq_len: int,
        sliding_window: int | None,
        softcap: float | None,
        sinks: HostArray | None,
    ) -> HostArray:
        """Attention of one request's last q_len positions: scaled q [q_len, H, D] -> [q_len, H, D]."""
        q_len, num_heads, head_dim = q.shape
        num_kv_heads = kv_layer.num_kv_heads
        first_tile, last_tile = (seq_len - q_len) // TILE, (seq_len - 1) // TILE
        num_tiles = last_tile - first_tile + 1

        # Positions of a tile that are not in the step are rows of zeros.
        rows = slice(seq_len - q_len - first_tile * TILE, seq_len - first_tile * TILE)
        padded = np.zeros((num_tiles * TILE, num_heads, head_dim), self.dtype)
        padded[rows] = q
        # [tiles, K, H / K * TILE, D]: the query heads of one kv-head are rows of one product.
        tiles = padded.reshape(num_tiles, TILE, num_kv_heads, -1, head_dim)
        tiles = tiles.transpose(0, 2, 3, 1, 4).reshape(num_tiles, num_kv_heads, -1, head_dim)

        start = _first_key(first_tile, sliding_window)
        k, v = kv_layer.read(block_table, start, (last_tile + 1) * TILE, seq_len, self.dtype)
        outputs = []
        for tile, queries in enumerate(tiles, first_tile):
            first_key, end = _first_key(tile, sliding_window), (tile + 1) * TILE
            keys = slice(first_key - start, end - start)
            own_k = _with_own_group(k[keys], first_key, kv_layer, slot, tile * TILE)
            hidden = _hidden(np.arange(tile * TILE, end), np.arange(first_key, end), sliding_window)
            outputs.append(_masked_attention(queries, own_k, v[keys], hidden, softcap, sinks))

        by_head = np.array(outputs).reshape(num_tiles, num_heads, TILE, head_dim)
        by_row = by_head.transpose(0, 2, 1, 3).reshape(-1, num_heads, head_dim)
        return np.asarray(by_row[rows])

    def logits(self, x: HostArray, weight: NumpyWeight, softcap: float | None = None) -> HostArray:
        return _cap(self.linear(x, weight), softcap)


def _requests(
    rows: npt.NDArray[Any], batch: ForwardBatch
) -> Iterator[tuple[npt.NDArray[Any], int, bool]]:
    """Of each request its own of the rows, its slot, and whether its first row begins its text."""
    first_positions = batch.positions[batch.query_start[:-1]]
    return zip(
        np.split(rows, batch.query_start[1:-1]),
        batch.state_slots.tolist(),
        (first_positions == 0).tolist(),
        strict=True,
    )


def _unit(x: HostArray) -> HostArray:
    """x / sqrt(sum of squares + 1e-6) over the last axis."""
    return np.asarray(x / np.sqrt(np.square(x, order="C").sum(axis=-1, keepdims=True) + 1e-6))


def _repeated(heads: HostArray, net: GatedDeltaNetConfig) -> HostArray:
    """[T, Hk, D] -> [T, Hv, D]: the k-head of each v-head."""
    times = net.num_value_heads // net.num_key_heads
    return np.tile(heads, (1, times, 1)) if net.tiled else np.repeat(heads, times, axis=1)


def _softplus(x: HostArray) -> HostArray:
    """log(1 + exp(x)), with an exponential that cannot overflow."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), x.dtype)


def _sigmoid(x: HostArray) -> HostArray:
    """1 / (1 + exp(-x)), with an exponential that cannot overflow."""
    decay = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, decay, 1) / (1 + decay), x.dtype)


def _softmax(scores: HostArray) -> HostArray:
    """exp(score) / sum of exp(score) over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _first_key(tile: int, sliding_window: int | None) -> int:
    """The first position that any row of the tile sees."""
    return 0 if sliding_window is None else max(0, tile * TILE - sliding_window + 1)


def _with_own_group(
    k: HostArray, first_key: int, kv_layer: NumpyKVLayer, slot: int, position: int
) -> HostArray:
    """Keys [S, K, D] from position `first_key` on, as the queries of the tile at `position` read them."""
    own = kv_layer.read_own_group(slot, position)
    if own is None:
        return k
    first, keys = own
    known = slice(max(first_key - first, 0), first_key + len(k) - first)
    replaced = np.array(k)
    replaced[len(k) - (known.stop - known.start) :] = keys[known, :, : k.shape[-1]]
    return replaced


def _hidden(
    query_positions: IntArray, key_positions: IntArray, sliding_window: int | None
) -> npt.NDArray[np.bool_]:
    """[queries, keys], True where a query must not see a key."""
    distance = query_positions[:, None] - key_positions
    hidden = distance < 0
    return hidden if sliding_window is None else hidden | (distance >= sliding_window)


def _masked_attention(
    q: HostArray,
    k: HostArray,
    v: HostArray,
    hidden: npt.NDArray[np.bool_],
    softcap: float | None,
    sinks: HostArray | None,
) -> HostArray:
    """q [K, H / K * TILE, D], k and v [S, K, D], hidden [TILE, S], sinks [H] -> [K, H / K * TILE, D]."""
    num_kv_heads, num_rows, _ = q.shape
    scores = _cap(q @ k.transpose(1, 2, 0), softcap)
    by_head = scores.reshape(num_kv_heads, num_rows // TILE, TILE, -1)
    np.copyto(by_head, -np.inf, where=hidden)
    peaks = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        own_sinks = np.repeat(sinks.reshape(num_kv_heads, -1), TILE, axis=1)[..., None]
        peaks = np.maximum(peaks, own_sinks)
    scores -= peaks
    weights = np.exp(scores, out=scores)
    totals = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        totals = totals + np.exp(own_sinks - peaks)
    return np.asarray(weights @ v.transpose(1, 0, 2) / totals)


def _cap(scores: HostArray, softcap: float | None) -> HostArray:
    return scores if softcap is None else softcap * np.tanh(scores / softcap)
