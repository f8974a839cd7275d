"""Llama's decoder, which runs every family that differs from Llama by facts of the checkpoint alone.

`ModelConfig` has these facts: biases, norms of q and k, windows, and partial, scaled or missing rotations of single
layers.
"""

from typing import ClassVar

from pellucid.backends.ops import Array, ForwardBatch, KVCache, KVLayer, Ops, Parameters
from pellucid.facts.model_config import ModelConfig
from pellucid.models.layers import DecoderLayer, LayerNorm, RMSNorm, feed_forward, lm_head
from pellucid.models.recurrent_layers import token_mixer


class LlamaLayer:
    """One layer: attention, then the MLP, each on the normed input and added to it."""

    norm_class: ClassVar[type[RMSNorm]] = RMSNorm

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        model, prefix = (config, parameters, ops), f"layers.{layer}"
        self.attention_norm = self.norm_class(*model, f"{prefix}.attention_norm")
        self.attention = token_mixer(*model, layer)
        self.mlp_norm = self.norm_class(*model, f"{prefix}.mlp_norm")
        self.mlp = feed_forward(*model, layer)

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        x = x + self.attention(self.attention_norm(x), batch, kv_layer)
        return x + self.mlp(self.mlp_norm(x))


class LlamaDecoder:
    """The whole model: embedding, layers, norm, head. Of a part of it, the layers between."""

    layer_class: ClassVar[type[DecoderLayer]] = LlamaLayer
    norm_class: ClassVar[type[RMSNorm]] = RMSNorm

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops) -> None:
        self.config = config
        self.ops = ops
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed_tokens = parameters.matrix("embed_tokens", vocab, hidden)
        self.layers = [
            self.layer_class(config, parameters, ops, i) for i in range(config.num_layers)
        ]
        # What scales the logits scales their input as well.
        self.norm = self.norm_class(config, parameters, ops, "norm", config.logits_scale)
        self.lm_head = lm_head(config, parameters, self.embed_tokens)

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`; of a part without the head, its rows [T, hidden]."""
        config = self.config
        x = self.embed(batch) if config.is_first else self.ops.received(batch, config.hidden_size)
        for layer, kv_layer in zip(self.layers, kv_cache.layers, strict=True):
            x = layer(x, batch, kv_layer)
        if not config.is_last:
            return x
        x = self.norm(x[batch.logits_indices])
        return self.ops.logits(x, self.lm_head, config.logits_softcap)

    def embed(self, batch: ForwardBatch) -> Array:
        """The input of the first layer, [T, hidden]."""
        return self.ops.embed(batch.token_ids, self.embed_tokens, self.config.embedding_scale)


class LayerNormLayer(LlamaLayer):
    """Llama's layer with norms that have biases."""

    norm_class = LayerNorm


class LayerNormDecoder(LlamaDecoder):
    """Llama with norms that have biases."""

    layer_class, norm_class = LayerNormLayer, LayerNorm
