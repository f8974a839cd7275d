"""Gemma 2: Llama with norms behind each block too, and soft caps on scores and logits.

Its alternating sliding windows, scales and caps stand in `ModelConfig`; loading adds the 1 of its norms.
"""

from pellucid.backends.ops import Array, ForwardBatch, KVLayer, Ops, Parameters
from pellucid.config import ModelConfig
from pellucid.models.llama import LlamaDecoder, LlamaLayer


class Gemma2Layer(LlamaLayer):
    """One layer: attention, then the MLP, normed before and after, and added to the input."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        super().__init__(config, parameters, ops, layer)
        prefix, hidden = f"layers.{layer}", config.hidden_size
        self.attention_post_norm = parameters.vector(f"{prefix}.attention_post_norm.weight", hidden)
        self.mlp_post_norm = parameters.vector(f"{prefix}.mlp_post_norm.weight", hidden)

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        ops = self.ops
        y = self.attention(ops.rms_norm(x, self.attention_norm, self.eps), batch, kv_layer)
        x = x + ops.rms_norm(y, self.attention_post_norm, self.eps)
        y = self.mlp(ops.rms_norm(x, self.mlp_norm, self.eps))
        return x + ops.rms_norm(y, self.mlp_post_norm, self.eps)


class Gemma2Decoder(LlamaDecoder):
    """Llama's embedding, norm and head around Gemma 2's layers."""

    layer_class = Gemma2Layer
