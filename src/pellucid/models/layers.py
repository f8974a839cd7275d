"""Layers that decoders share: attention over the paged cache, the gated MLP, experts, the head's weights."""

from dataclasses import replace
from typing import Protocol

from pellucid.backends.ops import Array, ForwardBatch, KVLayer, Matrix, Ops, Parameters, Vector
from pellucid.facts.model_config import ModelConfig, RopeConfig


class DecoderLayer(Protocol):
    """One layer of a decoder."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int
    ) -> None: ...

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ...


class RMSNorm:
    """Root mean square norm (Zhang, Sennrich 2019) over the hidden size; `factor` multiplies its output."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, ops: Ops, name: str, factor: float = 1.0
    ) -> None:
        self.ops = ops
        self.eps = config.norm_eps
        self.weight = parameters.vector(f"{name}.weight", config.hidden_size, factor)

    def __call__(self, x: Array) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        return self.ops.rms_norm(x, self.weight, self.eps)


class LayerNorm(RMSNorm):
    """Layer norm with a bias (Ba et al. 2016)."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, ops: Ops, name: str, factor: float = 1.0
    ) -> None:
        super().__init__(config, parameters, ops, name, factor)
        self.bias = parameters.vector(f"{name}.bias", config.hidden_size, factor)

    def __call__(self, x: Array) -> Array:
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)


class Attention:
    """Causal self-attention of one layer (Vaswani et al. 2017), grouped queries (Ainslie et al. 2023).

    Keys and values of the step are stored first, so that every row finds its own in the cache. A layer that
    shares those of an earlier one projects to queries alone.
    """

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        facts = config.layers[layer].attention
        assert facts is not None
        self.facts = facts
        self.ops = ops
        self.eps = config.norm_eps
        self.q_rope = facts.rope
        if facts.rope is not None and facts.query_growth is not None:
            self.q_rope = replace(facts.rope, growth=facts.query_growth)
        hidden = config.hidden_size
        q_width, kv_width = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
        # In each head, a gate for each number of its output follows the query.
        gated_q_width = 2 * q_width if facts.gated_output else q_width
        prefix = f"layers.{layer}"
        self.has_kv = facts.shared_kv_layer is None
        name = "qkv_proj"
        parts: tuple[int, ...] = gated_q_width, kv_width, kv_width
        if not self.has_kv:
            name, parts = "q_proj", parts[:1]
        elif facts.values_are_keys:
            name, parts = "qk_proj", parts[:2]
        self.num_projected_heads = sum(parts) // facts.head_dim
        self.qkv_proj = parameters.matrix(
            f"{prefix}.{name}", sum(parts), hidden, bias=facts.qkv_bias, parts=parts
        )
        self.o_proj = parameters.matrix(f"{prefix}.o_proj", hidden, q_width, bias=facts.o_bias)
        self.sinks = None
        if facts.has_sinks:
            self.sinks = parameters.vector(f"{prefix}.attention_sinks.weight", facts.num_heads)
        self.q_norm = self.k_norm = None
        if facts.qk_norm is not None:
            per_head = facts.qk_norm == "head"
            q_size, k_size = (facts.head_dim,) * 2 if per_head else (q_width, kv_width)
            self.q_norm = parameters.vector(f"{prefix}.q_norm.weight", q_size)
            if self.has_kv:
                self.k_norm = parameters.vector(f"{prefix}.k_norm.weight", k_size)

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        facts, ops = self.facts, self.ops
        num_heads, num_kv_heads = facts.num_heads, facts.num_kv_heads
        num_queries = 2 * num_heads if facts.gated_output else num_heads  # and their gates
        qkv = ops.linear(x, self.qkv_proj).reshape(-1, self.num_projected_heads, facts.head_dim)
        q = self._placed(qkv[:, :num_heads], batch, num_heads, self.q_norm, self.q_rope)
        if self.has_kv:
            k = qkv[:, num_queries : num_queries + num_kv_heads]
            v = k if facts.values_are_keys else qkv[:, num_queries + num_kv_heads :]
            if facts.v_norm:
                v = ops.rms_norm(v, None, self.eps)
            k = self._placed(k, batch, num_kv_heads, self.k_norm, facts.rope)
            ops.store_kv(kv_layer, k, v, batch)
        heads = ops.paged_attention(
            q, kv_layer, batch, facts.scale, facts.window, facts.softcap, self.sinks
        )
        if facts.gated_output:
            heads = ops.multiply(heads, qkv[:, num_heads:num_queries], "sigmoid")
        return ops.linear(heads.reshape(-1, num_heads * facts.head_dim), self.o_proj)

    def _placed(
        self,
        x: Array,
        batch: ForwardBatch,
        num_heads: int,
        norm: Vector | None,
        rope: RopeConfig | None,
    ) -> Array:
        """q or k [T, num_heads, D], normed and rotated."""
        facts, ops = self.facts, self.ops
        if norm is not None and not facts.norm_after_rope:
            x = self._normed(x, num_heads, norm)
        if rope is not None:
            x = ops.rope(x, batch, rope)
        if norm is not None and facts.norm_after_rope:
            x = self._normed(x, num_heads, norm)
        return x

    def _normed(self, x: Array, num_heads: int, norm: Vector) -> Array:
        ops, head_dim = self.ops, self.facts.head_dim
        if self.facts.qk_norm == "head":
            return ops.rms_norm(x, norm, self.eps)
        normed = ops.rms_norm(x.reshape(-1, num_heads * head_dim), norm, self.eps)
        return normed.reshape(-1, num_heads, head_dim)


class MLP:
    """down(activation(up(x))) of one layer."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        facts = config.layers[layer].mlp
        assert facts is not None and not facts.gated
        self.ops = ops
        self.activation = facts.activation
        hidden, inner, prefix = config.hidden_size, facts.intermediate_size, f"layers.{layer}"
        self.up_proj = parameters.matrix(f"{prefix}.up_proj", inner, hidden, bias=facts.bias)
        self.down_proj = parameters.matrix(f"{prefix}.down_proj", hidden, inner, bias=facts.bias)

    def __call__(self, x: Array) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ops = self.ops
        return ops.linear(
            ops.activate(ops.linear(x, self.up_proj), self.activation), self.down_proj
        )


class GatedMLP:
    """down(activation(gate(x)) * up(x)) of one layer (Shazeer 2020); gate and up are one matrix."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        ops: Ops,
        layer: int,
        name: str = "",
    ) -> None:
        facts = config.layers[layer].mlp
        assert facts is not None and facts.gated
        self.ops = ops
        self.activation = facts.activation
        hidden, inner, prefix = config.hidden_size, facts.intermediate_size, f"layers.{layer}"
        self.gate_up_proj = parameters.matrix(
            f"{prefix}.{name}gate_up_proj", 2 * inner, hidden, bias=facts.bias, parts=(inner, inner)
        )
        self.down_proj = parameters.matrix(
            f"{prefix}.{name}down_proj", hidden, inner, bias=facts.bias
        )

    def __call__(self, x: Array) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        gate_up = self.ops.linear(x, self.gate_up_proj)  # [T, 2 M]
        return self.ops.linear(self.ops.gated_activate(gate_up, self.activation), self.down_proj)


class Experts:
    """Gated MLPs of which a router chooses a few for each token (Shazeer et al. 2017)."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        facts = config.layers[layer].experts
        assert facts is not None
        self.facts = facts
        self.ops = ops
        hidden, inner, prefix = config.hidden_size, facts.intermediate_size, f"layers.{layer}"
        num_experts, bias = facts.num_experts, facts.expert_bias
        self.router = parameters.router(
            f"{prefix}.router", num_experts, hidden, bias=facts.router_bias
        )
        self.selection_bias = None
        if facts.selection_bias:
            self.selection_bias = parameters.vector(f"{prefix}.selection.bias", num_experts)
        self.expert_scales = None
        if facts.expert_scales:
            self.expert_scales = parameters.vector(f"{prefix}.expert_scales.weight", num_experts)
        name = f"{prefix}.experts"
        self.gate_proj = parameters.experts(f"{name}.gate_proj", num_experts, inner, hidden, bias)
        self.up_proj = parameters.experts(f"{name}.up_proj", num_experts, inner, hidden, bias)
        self.down_proj = parameters.experts(f"{name}.down_proj", num_experts, hidden, inner, bias)

    def __call__(self, x: Array, router_input: Array | None = None) -> Array:
        """x [T, hidden] -> [T, hidden]; the router looks at `router_input` [T, hidden], or at x."""
        facts, ops = self.facts, self.ops
        logits = ops.linear(x if router_input is None else router_input, self.router)  # [T, E]
        weights = ops.route(
            logits,
            facts.num_chosen,
            facts.router,
            facts.normalize,
            facts.scale,
            self.selection_bias,
        )
        if self.expert_scales is not None:
            weights = ops.scale(weights, self.expert_scales)
        return ops.expert_mlp(
            x,
            weights,
            facts.num_chosen,
            self.gate_proj,
            self.up_proj,
            self.down_proj,
            facts.activation,
        )


class ExpertsAndShared:
    """Experts beside one that every token passes, times the sigmoid of a gate."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        self.ops = ops
        self.experts = Experts(config, parameters, ops, layer)
        self.shared = GatedMLP(config, parameters, ops, layer, "shared_")
        self.gate = parameters.router(f"layers.{layer}.shared_gate", 1, config.hidden_size)

    def __call__(self, x: Array) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ops = self.ops
        shared = ops.multiply(self.shared(x), ops.linear(x, self.gate), "sigmoid")
        return shared + self.experts(x)


def feed_forward(
    config: ModelConfig, parameters: Parameters, ops: Ops, layer: int
) -> MLP | GatedMLP | Experts | ExpertsAndShared:
    """The part of a layer that each token passes alone: dense, experts, or both."""
    facts = config.layers[layer]
    if facts.experts is None:
        is_gated = facts.mlp is not None and facts.mlp.gated
        return (GatedMLP if is_gated else MLP)(config, parameters, ops, layer)
    if facts.mlp is None:
        return Experts(config, parameters, ops, layer)
    return ExpertsAndShared(config, parameters, ops, layer)


def lm_head(config: ModelConfig, parameters: Parameters, embed_tokens: Matrix) -> Matrix:
    """The head's weights [V, hidden], which many checkpoints share with the embedding."""
    if config.tie_word_embeddings:
        return embed_tokens
    return parameters.matrix("lm_head", config.vocab_size, config.hidden_size)
