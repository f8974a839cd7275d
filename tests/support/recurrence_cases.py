"""Recurrent layers in steps, for tests of their ops on any backend."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends.base import Backend
from pellucid.backends.ops import HostArray, KVCache
from pellucid.facts.model_config import (
    AttentionConfig,
    GatedDeltaNetConfig,
    LayerConfig,
    MLPConfig,
    ModelConfig,
    ShortConvolutionConfig,
)
from support.batches import Share, forward_batch
from support.steps import Step

BLOCK_SIZE, BLOCKS = 16, (0, 1)  # enough for each text; nothing reads them


def recurrent_model(recurrence: ShortConvolutionConfig | GatedDeltaNetConfig) -> ModelConfig:
    """Two recurrent layers, of which tests use the second, around one with attention."""
    mlp = MLPConfig(16, "silu")
    attention = LayerConfig(AttentionConfig(2, 1, 8, 1.0, None), mlp)
    recurrent = LayerConfig(None, mlp, recurrence=recurrence)
    layers = (recurrent, attention, recurrent)
    return ModelConfig("tiny", 8, 16, layers, 1024, 1e-6)


def use_all_slots(cache: KVCache, num_slots: int) -> None:
    """As if other texts had had them before."""
    for slot in range(num_slots):
        cache.write_state(slot, np.full(cache.bytes_per_state, 0x3F, np.uint8))


@dataclass(frozen=True)
class ConvolutionCase:
    """A convolution over some texts.

    Args:
        xs: [length, C] of each text.
        weight: [kernel_size * C].
        bias: [C], or None.
    """

    xs: Sequence[HostArray]
    weight: HostArray
    bias: HostArray | None

    @classmethod
    def random(
        cls, lengths: Sequence[int], num_channels: int, kernel_size: int, has_bias: bool
    ) -> "ConvolutionCase":
        rng = np.random.default_rng(num_channels)
        xs = [rng.standard_normal((length, num_channels)) for length in lengths]
        weight = rng.standard_normal(kernel_size * num_channels)
        bias = rng.standard_normal(num_channels) if has_bias else None
        return cls(xs, weight, bias)

    def run(self, backend: Backend, steps: Sequence[Step], slots: Sequence[int]) -> list[HostArray]:
        """[length, C] of each text, whatever steps compute them."""
        num_channels = self.xs[0].shape[1]
        recurrence = ShortConvolutionConfig(num_channels, len(self.weight) // num_channels)
        cache = backend.make_kv_cache(
            recurrent_model(recurrence), len(BLOCKS), BLOCK_SIZE, "f32", 1 + max(slots)
        )
        use_all_slots(cache, 1 + max(slots))
        weight = backend.weights.vector(self.weight)
        bias = None if self.bias is None else backend.weights.vector(self.bias)
        outputs = [np.full_like(x, np.nan) for x in self.xs]
        for step in steps:
            batch = forward_batch(
                [Share([0] * stop, start, stop, BLOCKS, None, slots[b]) for b, start, stop in step],
                BLOCK_SIZE,
            )
            x = np.concatenate([self.xs[b][start:stop] for b, start, stop in step])
            x = x.astype(getattr(backend.ops, "dtype", np.float32))
            y = backend.ops.causal_convolution(x, weight, bias, cache.layers[2], batch)
            for (b, start, stop), own in zip(
                step, np.split(y, batch.query_start[1:-1]), strict=True
            ):
                outputs[b][start:stop] = own
        return outputs


@dataclass(frozen=True)
class DeltaCase:
    """A gated delta net over some texts.

    Args:
        net: its sizes.
        qkvs: [length, 2 Hk dk + Hv dv] of each text.
        bs: [length, Hv] of each.
        alphas: [length, Hv] of each.
        log_decay: [Hv].
        step_bias: [Hv].
    """

    net: GatedDeltaNetConfig
    qkvs: Sequence[HostArray]
    bs: Sequence[HostArray]
    alphas: Sequence[HostArray]
    log_decay: HostArray
    step_bias: HostArray

    @classmethod
    def random(cls, net: GatedDeltaNetConfig, lengths: Sequence[int]) -> "DeltaCase":
        rng = np.random.default_rng(net.key_dim)
        width, num_heads = 2 * net.keys_width + net.values_width, net.num_value_heads
        return cls(
            net,
            [rng.standard_normal((length, width)) for length in lengths],
            [rng.standard_normal((length, num_heads)) for length in lengths],
            [rng.standard_normal((length, num_heads)) for length in lengths],
            -np.exp(rng.standard_normal(num_heads)),
            rng.standard_normal(num_heads) - 2,
        )

    def run(self, backend: Backend, steps: Sequence[Step], slots: Sequence[int]) -> list[HostArray]:
        """[length, Hv, dv] of each text, whatever steps compute them."""
        model = recurrent_model(self.net)
        cache = backend.make_kv_cache(model, len(BLOCKS), BLOCK_SIZE, "f32", 1 + max(slots))
        use_all_slots(cache, 1 + max(slots))
        vectors = [backend.weights.vector(each) for each in (self.log_decay, self.step_bias)]
        dtype = getattr(backend.ops, "dtype", np.float32)
        shape = self.net.num_value_heads, self.net.value_dim
        outputs = [np.full((len(qkv), *shape), np.nan, dtype) for qkv in self.qkvs]
        for step in steps:
            batch = forward_batch(
                [Share([0] * stop, start, stop, BLOCKS, None, slots[b]) for b, start, stop in step],
                BLOCK_SIZE,
            )
            arrays = [
                np.concatenate([each[b][start:stop] for b, start, stop in step]).astype(dtype)
                for each in (self.qkvs, self.bs, self.alphas)
            ]
            y = backend.ops.gated_delta_net(*arrays, *vectors, self.net, cache.layers[2], batch)
            for (b, start, stop), own in zip(
                step, np.split(y, batch.query_start[1:-1]), strict=True
            ):
                outputs[b][start:stop] = own
        return outputs
