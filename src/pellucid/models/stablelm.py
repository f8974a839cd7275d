"""StableLM: Llama with layer norms that have biases; a quarter of each head is rotated."""

from functools import partial
from typing import Any

from pellucid.backends.ops import Array, ForwardBatch, KVCache, KVLayer, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.config_json import llama_like, same_rope
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import EPSILON, ROPE_KEYS, GgufMetadata, llama_like_values
from pellucid.models.layers import Attention, feed_forward, layer_norm_weights, lm_head
from pellucid.models.stored_weights import LLAMA_WEIGHTS


class StableLMLayer:
    """One layer: attention, then the MLP, each on the normed input and added to it."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        self.ops = ops
        self.eps = config.norm_eps
        prefix, hidden = f"layers.{layer}", config.hidden_size
        self.attention_norm = layer_norm_weights(parameters, f"{prefix}.attention_norm", hidden)
        self.attention = Attention(config, parameters, ops, layer)
        self.mlp_norm = layer_norm_weights(parameters, f"{prefix}.mlp_norm", hidden)
        self.mlp = feed_forward(config, parameters, ops, layer)

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ops = self.ops
        x = x + self.attention(ops.layer_norm(x, *self.attention_norm, self.eps), batch, kv_layer)
        return x + self.mlp(ops.layer_norm(x, *self.mlp_norm, self.eps))


class StableLMDecoder:
    """The whole model: embedding, layers, norm, head."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops) -> None:
        self.config = config
        self.ops = ops
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed_tokens = parameters.matrix("embed_tokens", vocab, hidden)
        self.layers = [StableLMLayer(config, parameters, ops, i) for i in range(config.num_layers)]
        self.norm = layer_norm_weights(parameters, "norm", hidden)
        self.lm_head = lm_head(config, parameters, self.embed_tokens)

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`."""
        ops = self.ops
        x = ops.embed(batch.token_ids, self.embed_tokens)  # [T, hidden]
        for layer, kv_layer in zip(self.layers, kv_cache.layers, strict=True):
            x = layer(x, batch, kv_layer)
        x = ops.layer_norm(x[batch.logits_indices], *self.norm, self.config.norm_eps)
        return ops.logits(x, self.lm_head)


def _read_config(config: JsonObject) -> ModelConfig:
    for key in ("qk_layernorm", "use_parallel_residual"):
        if config.boolean(key):
            raise config.error(key, "not supported: must be false")
    return llama_like(
        config,
        norm_eps="layer_norm_eps",
        ropes=partial(same_rope, partial_rotary=True),
        attention={"qkv_bias": config.boolean("use_qkv_bias")},
    )


_PARALLEL = "use_parallel_residual"


def _gguf_config(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        **llama_like_values(metadata, partial_rotary=True),
        "use_qkv_bias": metadata.has_tensor("blk.0.attn_q.bias"),
        # Files of all models say true; those that have it lack the norm before the MLP.
        "use_parallel_residual": not metadata.has_tensor("blk.0.ffn_norm.weight"),
        "qk_layernorm": metadata.has_tensor("blk.0.attn_q_norm.weight"),
    }


STABLELM = Family(
    architectures=("StableLmForCausalLM",),
    model_types=("stablelm",),
    read_config=_read_config,
    decoder=StableLMDecoder,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily("stablelm", frozenset({EPSILON, _PARALLEL, *ROPE_KEYS}), _gguf_config),
)
