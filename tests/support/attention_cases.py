"""Attention over random q, k and v: through the KV cache in any steps, and directly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Backend
from pellucid.backends.ops import HostArray
from pellucid.facts.model_config import ModelConfig
from support.batches import Share, forward_batch, scattered_block_tables
from support.steps import Step
from support.uniform_model import uniform_model


@dataclass(frozen=True)
class AttentionCase:
    """q [length, H, D] and k, v [length, K, D] of each request."""

    requests: tuple[tuple[HostArray, HostArray, HostArray], ...]

    @classmethod
    def random(
        cls,
        seed: int,
        lengths: Sequence[int],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: npt.DTypeLike = np.float32,
    ) -> "AttentionCase":
        rng = np.random.default_rng(seed)
        return cls(
            tuple(
                tuple(
                    rng.standard_normal((length, heads, head_dim)).astype(dtype)
                    for heads in (num_heads, num_kv_heads, num_kv_heads)
                )
                for length in lengths
            )
        )


def paged_attention_in_steps(
    backend: Backend,
    case: AttentionCase,
    steps: Sequence[Step],
    block_size: int,
    kv_dtype: str = "f32",
    scale: float = 0.35,
    **options: Any,
) -> list[HostArray]:
    """Stores and attends step by step, in scattered blocks; [length, H, D] per request."""
    tables = scattered_block_tables([len(q) for q, _, _ in case.requests], block_size)
    kv_layer = backend.make_kv_cache(
        config_of(case), sum(map(len, tables)), block_size, kv_dtype, len(tables)
    ).layers[0]
    outputs = [np.full_like(q, np.nan) for q, _, _ in case.requests]
    for step in steps:
        shares = [
            Share([0] * stop, start, stop, tables[request], state_slot=request)
            for request, start, stop in step
        ]
        batch = forward_batch(shares, block_size)
        q, k, v = (
            np.concatenate(
                [case.requests[request][part][start:stop] for request, start, stop in step]
            )
            for part in range(3)
        )
        backend.ops.store_kv(kv_layer, k, v, batch)
        rows = backend.ops.paged_attention(q, kv_layer, batch, scale, **options)
        for (request, start, stop), own in zip(
            step, np.split(rows, batch.query_start[1:-1]), strict=True
        ):
            outputs[request][start:stop] = own
    return outputs


def dense_attention(
    q: HostArray,
    k: HostArray,
    v: HostArray,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: HostArray | None = None,
) -> HostArray:
    """The same for one request, row by row and head by head over the keys in sight, in f64."""
    num_tokens, num_heads, _ = q.shape
    group = num_heads // k.shape[1]
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    output = np.empty_like(q)
    for position in range(num_tokens):
        first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
        for head in range(num_heads):
            keys, values = (array[first : position + 1, head // group] for array in (k, v))
            scores = scale * keys @ q[position, head]
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            if sinks is not None:  # a key whose value is 0
                scores = np.append(scores, sinks[head])
                values = np.concatenate((values, np.zeros_like(values[:1])))
            weights = np.exp(scores - scores.max())
            output[position, head] = weights @ values / weights.sum()
    return output


def config_of(case: AttentionCase) -> ModelConfig:
    q, k, _ = case.requests[0]
    return uniform_model(
        architecture="none",
        vocab_size=1,
        hidden_size=1,
        intermediate_size=1,
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=q.shape[2],
        max_position_embeddings=1,
        norm_eps=1e-5,
        activation="silu",
        rope=None,
        scale=1.0,
        windows=(None,),
    )
