"""Layers that decoders share: attention over the paged cache, the gated MLP, the head's weights."""

from pellucid.backends.ops import Array, ForwardBatch, KVLayer, Matrix, Ops, Parameters
from pellucid.config import ModelConfig


class Attention:
    """Causal self-attention of one layer (Vaswani et al. 2017), grouped queries (Ainslie et al. 2023).

    Keys and values of the step are stored first, so that every row finds its own in the cache.
    """

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        self.config = config
        self.ops = ops
        self.sliding_window = config.sliding_windows[layer]
        hidden, head_dim = config.hidden_size, config.head_dim
        self.num_qkv_heads = config.num_heads + 2 * config.num_kv_heads
        prefix = f"layers.{layer}"
        self.qkv_proj = parameters.matrix(
            f"{prefix}.qkv_proj", self.num_qkv_heads * head_dim, hidden, bias=config.qkv_bias
        )
        self.o_proj = parameters.matrix(
            f"{prefix}.o_proj", hidden, config.num_heads * head_dim, bias=config.o_bias
        )
        if config.qk_norm:
            self.q_norm = parameters.vector(f"{prefix}.q_norm.weight", head_dim)
            self.k_norm = parameters.vector(f"{prefix}.k_norm.weight", head_dim)

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        config, ops = self.config, self.ops
        num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = ops.linear(x, self.qkv_proj).reshape(-1, self.num_qkv_heads, head_dim)
        q = qkv[:, :num_heads]
        k = qkv[:, num_heads : num_heads + num_kv_heads]
        v = qkv[:, num_heads + num_kv_heads :]
        if config.qk_norm:
            q = ops.rms_norm(q, self.q_norm, config.norm_eps)
            k = ops.rms_norm(k, self.k_norm, config.norm_eps)
        if config.rope:
            q = ops.rope(q, batch, config.rope)
            k = ops.rope(k, batch, config.rope)
        ops.store_kv(kv_layer, k, v, batch.slot_mapping)
        heads = ops.paged_attention(
            q,
            kv_layer,
            batch,
            config.attention_scale,
            self.sliding_window,
            config.attention_softcap,
        )
        return ops.linear(heads.reshape(-1, num_heads * head_dim), self.o_proj)


class GatedMLP:
    """down(activation(gate(x)) * up(x)) of one layer (Shazeer 2020); gate and up are one matrix."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        self.ops = ops
        self.activation = config.activation
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = parameters.matrix(
            f"layers.{layer}.gate_up_proj", 2 * inner, hidden, bias=config.mlp_bias
        )
        self.down_proj = parameters.matrix(
            f"layers.{layer}.down_proj", hidden, inner, bias=config.mlp_bias
        )

    def __call__(self, x: Array) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        gate_up = self.ops.linear(x, self.gate_up_proj)
        return self.ops.linear(self.ops.gated_activate(gate_up, self.activation), self.down_proj)


def lm_head(config: ModelConfig, parameters: Parameters, embed_tokens: Matrix) -> Matrix:
    """The head's weights [V, hidden], which many checkpoints share with the embedding."""
    if config.tie_word_embeddings:
        return embed_tokens
    return parameters.matrix("lm_head", config.vocab_size, config.hidden_size)
