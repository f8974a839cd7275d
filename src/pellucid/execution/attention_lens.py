"""The attention lens: what one token attends to, from its query and the keys and values in the cache.

Fused kernels do not store attention weights. So the query of one row is stored while a forward runs, and the
weights of this row are computed again from the same keys that the kernel read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pellucid.backends.ops import Array, ForwardBatch, HostArray, KVLayer, Ops

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AttentionCall:
    """One layer's attention of one row.

    Attributes:
        q: [H, D].
        output: [H, D] that the backend computed.
        scale: multiplies q.k.
        sliding_window: keys seen, the token itself included; None: all.
        softcap: of the scores; None: no cap.
        sinks: [H] scores without a value; None: there are none.
    """

    q: HostArray
    output: HostArray
    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: HostArray | None


class AttentionStep(NamedTuple):
    """A step of which the attention of the last row was seen.

    Attributes:
        rows: what the decoder returned: logits, or of a part of a model its rows.
        calls: one for each layer with attention, in order.
    """

    rows: HostArray
    calls: Sequence[AttentionCall]


class AttentionCapture:
    """`Ops` that store the query and the output of the last row of each attention.

    Args:
        ops: the backend's ops, which compute everything.

    Attributes:
        calls: one for each layer, in order.
    """

    def __init__(self, ops: Ops) -> None:
        self.calls: list[AttentionCall] = []
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def paged_attention(
        self,
        q: Array,
        kv_layer: KVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
    ) -> Array:
        output = self._ops.paged_attention(
            q, kv_layer, batch, scale, sliding_window, softcap, sinks
        )
        own_q, own_output = (self._ops.to_host(rows[-1]) for rows in (q, output))
        own_sinks = None if sinks is None else self._ops.to_host(sinks)
        self.calls.append(
            AttentionCall(own_q, own_output, scale, sliding_window, softcap, own_sinks)
        )
        return output


def attention_weights(call: AttentionCall, k: HostArray) -> FloatArray:
    """Weights [H, n] of one row over positions 0 .. n - 1, the last one its own. Each head sums to 1, and to
    less where a sink takes a share.

    Args:
        k: [n, K, D].
    """
    num_keys, num_kv_heads, head_dim = k.shape
    queries = call.q.astype(np.float64).reshape(num_kv_heads, -1, head_dim)
    scores = call.scale * np.einsum("kgd,nkd->kgn", queries, k.astype(np.float64))
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if call.sliding_window is not None:
        scores[..., : max(0, num_keys - call.sliding_window)] = -np.inf
    if call.sinks is not None:
        sinks = call.sinks.astype(np.float64).reshape(num_kv_heads, -1, 1)
        scores = np.concatenate((scores, sinks), axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights[..., :num_keys]
    found: FloatArray = weights.reshape(-1, num_keys)
    return found


def attention_output(weights: FloatArray, v: HostArray) -> FloatArray:
    """The attention output [H, D] of weights [H, n] and values v [n, K, D]."""
    num_keys, num_kv_heads, head_dim = v.shape
    grouped = weights.reshape(num_kv_heads, -1, num_keys)
    output: FloatArray = np.einsum("kgn,nkd->kgd", grouped, v.astype(np.float64))
    return output.reshape(-1, head_dim)
