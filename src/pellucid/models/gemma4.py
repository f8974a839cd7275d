"""Gemma 4: Gemma 3's norms, with wider heads and fewer kv-heads in the layers that see all tokens.

The last layers of some sizes read the keys and values of earlier layers. Small sizes have a separate embedding of
each token for each layer, in a table of which a step reads single rows. The 26B-A4B has experts beside the MLP.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pellucid.backends.ops import Array, ForwardBatch, KVCache, KVLayer, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ExpertsConfig, LayerConfig, ModelConfig, RopeConfig
from pellucid.models import config_json
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gemma import SANDWICH_WEIGHTS
from pellucid.models.gguf_metadata import (
    EXPERT_WIDTH,
    FEED_FORWARD,
    KEY_LENGTH,
    KV_HEADS,
    RMS_EPSILON,
    ROPE_BASE,
    ROPE_DIM,
    SLIDING_PATTERN,
    VALUE_LENGTH,
    WINDOW,
    GgufMetadata,
    llama_like_values,
    num_layers,
    sliding_pattern,
)
from pellucid.models.layers import Attention, Experts, GatedMLP, RMSNorm, lm_head
from pellucid.models.mixture import APART_GATE_UP, EXPERT_KEYS, MAX_EXPERTS, gguf_experts
from pellucid.models.rope_config import FULL, SLIDING, every_nth_full
from pellucid.models.stored_weights import (
    QK_NORM_WEIGHTS,
    QKV,
    Half,
    Recipe,
    Source,
    StoredWeight,
    Tensor,
    in_layers,
    stored,
)


class Gemma4Layer:
    """One layer: attention, then the MLP, perhaps with experts beside it, each normed before and after; then the
    layer's own embedding of each token, if it has one."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        facts, hidden, prefix = config.layers[layer], config.hidden_size, f"layers.{layer}"
        model = config, parameters, ops
        self.ops = ops
        self.attention_norm = RMSNorm(*model, f"{prefix}.attention_norm")
        self.attention = Attention(*model, layer)
        self.attention_post_norm = RMSNorm(*model, f"{prefix}.attention_post_norm")
        self.mlp_norm = RMSNorm(*model, f"{prefix}.mlp_norm")
        self.mlp = GatedMLP(*model, layer)
        self.mlp_post_norm = RMSNorm(*model, f"{prefix}.mlp_post_norm")
        self.experts = None if facts.experts is None else ExpertsBeside(*model, layer)
        self.embedding_size = facts.embedding_size
        if self.embedding_size:
            own = f"{prefix}.embedding"
            self.gate_proj = parameters.matrix(f"{own}_gate_proj", self.embedding_size, hidden)
            self.out_proj = parameters.matrix(f"{own}_out_proj", hidden, self.embedding_size)
            self.embedding_norm = RMSNorm(*model, f"{own}_norm")
        self.output_scale = parameters.vector(f"{prefix}.output_scale.weight", 1)

    def __call__(
        self, x: Array, embeddings: Array | None, batch: ForwardBatch, kv_layer: KVLayer
    ) -> Array:
        """x [T, hidden] and the layer's embeddings [T, P] -> [T, hidden]."""
        ops = self.ops
        y = self.attention(self.attention_norm(x), batch, kv_layer)
        x = x + self.attention_post_norm(y)
        y = self.mlp(self.mlp_norm(x))
        if self.experts is not None:
            y = self.experts(x, y)
        x = x + self.mlp_post_norm(y)
        if embeddings is not None:
            gated = ops.multiply(embeddings, ops.linear(x, self.gate_proj), "gelu_tanh")
            x = x + self.embedding_norm(ops.linear(gated, self.out_proj))
        return ops.scale(x, self.output_scale)


class ExpertsBeside:
    """The sum of an MLP's output and of experts', each normed; the router has a norm of its own."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        model, prefix = (config, parameters, ops), f"layers.{layer}"
        self.dense_post_norm = RMSNorm(*model, f"{prefix}.dense_post_norm")
        # The router's input is also divided by the root of its width.
        self.router_norm = RMSNorm(*model, f"{prefix}.router_norm", config.hidden_size**-0.5)
        self.norm = RMSNorm(*model, f"{prefix}.experts_norm")
        self.experts = Experts(*model, layer)
        self.post_norm = RMSNorm(*model, f"{prefix}.experts_post_norm")

    def __call__(self, x: Array, dense: Array) -> Array:
        """The layer's x [T, hidden] and its MLP's output [T, hidden] -> [T, hidden]."""
        router_input = self.router_norm(x)
        y = self.experts(self.norm(x), router_input)
        dense = self.dense_post_norm(dense)
        return dense + self.post_norm(y)


class LayerEmbeddings:
    """An embedding of each token for each layer: a row of a table, and a projection of the token's embedding."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, size: int) -> None:
        self.ops = ops
        self.num_layers, self.size = config.whole.num_layers, size
        # The projection is scaled by hidden ** -0.5 before it is normed: the same as a larger epsilon.
        self.eps = config.norm_eps * config.hidden_size
        width = self.num_layers * size
        self.table = parameters.table("layer_embeddings", config.layer_vocab_size, width)
        self.proj = parameters.matrix("layer_embeddings_proj", width, config.hidden_size)
        # The sum of two parts is divided by the root of 2: both parts are.
        self.norm = parameters.vector("layer_embeddings_norm.weight", size, 2**-0.5)
        self.scale = math.sqrt(size / 2)

    def __call__(self, x: Array, batch: ForwardBatch) -> Array:
        """The tokens' embeddings x [T, hidden] -> [T, L, P]."""
        ops, shape = self.ops, (self.num_layers, self.size)
        projected = ops.linear(x, self.proj).reshape(-1, *shape)
        rows = ops.embed(batch.token_ids, self.table, self.scale).reshape(-1, *shape)
        return ops.rms_norm(projected, self.norm, self.eps) + rows


class Gemma4Decoder:
    """The whole model: embedding, the layers' embeddings, layers, norm, head."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops) -> None:
        self.config = config
        self.ops = ops
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed_tokens = parameters.matrix("embed_tokens", vocab, hidden)
        self.embedding_size = config.layers[0].embedding_size
        self.layer_embeddings = None
        if self.embedding_size:
            self.layer_embeddings = LayerEmbeddings(config, parameters, ops, self.embedding_size)
        first = config.first_without_kv
        self.first_without_kv = first if first < config.num_layers else None
        self.layers = [Gemma4Layer(config, parameters, ops, i) for i in range(config.num_layers)]
        self.norm = RMSNorm(config, parameters, ops, "norm")
        self.lm_head = lm_head(config, parameters, self.embed_tokens)

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`; of a part without the head, its rows [T, hidden]."""
        config, ops = self.config, self.ops
        embeddings = None
        if config.is_first or self.layer_embeddings is not None:
            x = ops.embed(batch.token_ids, self.embed_tokens, config.embedding_scale)  # [T, hidden]
        if self.layer_embeddings is not None:
            embeddings = self.layer_embeddings(x, batch)
        if not config.is_first:
            x = ops.received(batch, config.hidden_size)
        for i, (layer, kv_layer) in enumerate(zip(self.layers, kv_cache.layers, strict=True)):
            if i == self.first_without_kv:
                # Later layers store no keys and values, so only rows whose logits are needed pass through them.
                x = x[batch.logits_indices]
                embeddings = None if embeddings is None else embeddings[batch.logits_indices]
                batch = batch.logits_batch()
            own = None
            if embeddings is not None:
                number = config.first_layer + i
                own = embeddings[:, number : number + 1].reshape(-1, self.embedding_size)
            x = layer(x, own, batch, kv_layer)
        if not config.is_last:
            return x
        x = self.norm(x[batch.logits_indices])
        return ops.logits(x, self.lm_head, config.logits_softcap)


# -- config.json -----------------------------------------------------------------------------------

_PERIOD = 6
_LAYER_WIDTH = "hidden_size_per_layer_input"


def _read_config(config: JsonObject) -> ModelConfig:
    if config.values.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.error(
            "use_bidirectional_attention", 'text must see what is before it: "vision" or null'
        )

    def windows(config: JsonObject, num_layers: int) -> config_json.Windows:
        sliding = config.integer("sliding_window")
        mixed = config_json.mixed_windows(config, sliding, every_nth_full(num_layers, _PERIOD))
        return (*mixed[:-1], None)  # the last layer is full, whatever config.json says

    def ropes(
        config: JsonObject, head_dim: int, max_position: int, windows: config_json.Windows
    ) -> Sequence[RopeConfig | None]:
        return config_json.ropes_by_window(
            config,
            head_dim,
            max_position,
            windows,
            full_head_dim=_full_heads(config, windows)["head_dim"],
            sliding_theta_key="rope_local_base_freq",
        )

    model = config_json.llama_like(
        config,
        activation="hidden_activation",
        windows=windows,
        ropes=ropes,
        attention={
            "scale": 1.0,
            "qk_norm": "head",
            "v_norm": True,
            **config_json.attention_biases(config),
        },
    )
    embedding_size = 0
    if config.get(_LAYER_WIDTH) is not None:
        embedding_size = config.integer(_LAYER_WIDTH, minimum=0)
    experts = _read_experts(config)
    full_heads = {
        **_full_heads(config, [attention.window for attention in model.attentions]),
        "values_are_keys": config.boolean("attention_k_eq_v"),
    }
    layers = [
        _with_attention(layer, **full_heads) if _is_full(layer) else layer for layer in model.layers
    ]
    layers = _with_shared_kv(config, layers)
    return replace(
        model,
        layers=tuple(
            replace(layer, experts=experts, embedding_size=embedding_size) for layer in layers
        ),
        layer_vocab_size=_layer_vocab_size(config, model.vocab_size) if embedding_size else 0,
        logits_softcap=config.optional_number("final_logit_softcapping"),
        embedding_scale=math.sqrt(model.hidden_size),
    )


def _full_heads(config: JsonObject, windows: config_json.Windows) -> dict[str, int]:
    """Head dim and number of kv-heads of the layers that see all tokens.

    Published checkpoints have a key for each; transformers 5.23 saves what single layers have instead.
    """
    key, num_heads = "per_layer_config", config.integer("num_attention_heads")
    own = config.optional_object(key)
    if own is None:
        head_dim, kv_heads = config.integer("global_head_dim", 512), None
        if config.boolean("attention_k_eq_v"):
            kv_heads = config.optional_integer("num_global_key_value_heads")
    else:
        full = [layer for layer, window in enumerate(windows) if window is None]
        known = {"head_dim", "num_key_value_heads"}
        (name, overrides), *others = own.values.items() or [("", None)]
        if (
            # "05" beside "11"
            sorted(int(each) for each in own.values if each.isdecimal()) != full
            or not isinstance(overrides, dict)
            or not known.issuperset(overrides)
            or any(other != overrides for _, other in others)
        ):
            raise config.error(
                key,
                f"must give the layers {', '.join(map(str, full))} the same"
                f" {' and '.join(sorted(known))}",
            )
        first = replace(config.with_values(**overrides), name=f"{key}.{name}")
        head_dim = first.integer("head_dim")
        kv_heads = first.optional_integer("num_key_value_heads")
    kv_heads = kv_heads or config.integer("num_key_value_heads")
    if num_heads % kv_heads:
        raise config.error(
            "num_global_key_value_heads" if own is None else key,
            f"the number of kv-heads must divide num_attention_heads={num_heads}",
        )
    return {"head_dim": head_dim, "num_kv_heads": kv_heads}


def _with_shared_kv(config: JsonObject, layers: Sequence[LayerConfig]) -> list[LayerConfig]:
    """`layers`, of which the last ones read the keys and values of the last earlier layer of their type."""
    key = "num_kv_shared_layers"
    first_shared = len(layers) - config.integer(key, minimum=0, maximum=len(layers) - 1)
    sources = {_is_full(layer): i for i, layer in enumerate(layers[:first_shared])}
    factor = 2 if config.boolean("use_double_wide_mlp") else 1
    changed = list(layers[:first_shared])
    for layer in layers[first_shared:]:
        if _is_full(layer) not in sources:
            raise config.error(key, "a layer before them must have keys and values of each type")
        shared = _with_attention(layer, shared_kv_layer=sources[_is_full(layer)])
        assert layer.mlp is not None
        mlp = replace(layer.mlp, intermediate_size=factor * layer.mlp.intermediate_size)
        changed.append(replace(shared, mlp=mlp))
    return changed


def _is_full(layer: LayerConfig) -> bool:
    return layer.attention is not None and layer.attention.window is None


def _with_attention(layer: LayerConfig, **fields: Any) -> LayerConfig:
    assert layer.attention is not None
    return replace(layer, attention=replace(layer.attention, **fields))


def _layer_vocab_size(config: JsonObject, vocab_size: int) -> int:
    size = config.integer("vocab_size_per_layer_input")
    if size < vocab_size:
        raise config.error(
            "vocab_size_per_layer_input", f"must be at least vocab_size={vocab_size}"
        )
    return size


def _read_experts(config: JsonObject) -> ExpertsConfig | None:
    if not config.boolean("enable_moe_block", False):
        return None
    num_experts = config.integer("num_experts", maximum=MAX_EXPERTS)
    return ExpertsConfig(
        num_experts,
        config.integer("top_k_experts", maximum=num_experts),
        config.integer("moe_intermediate_size"),
        config_json.read_activation(config, "hidden_activation"),
        expert_scales=True,
    )


# -- names -----------------------------------------------------------------------------------------

_QKV = SANDWICH_WEIGHTS[QKV]


def _projections(count: int) -> StoredWeight:
    """The first of the projections to q, k and v."""
    return StoredWeight(Recipe(_QKV.hf.sources[:count]), Recipe(_QKV.gguf.sources[:count]))


def _expert_half(index: int) -> StoredWeight:
    half = (Half(index),)
    return stored(Tensor("experts.gate_up_proj", half), Source("ffn_gate_up_exps", half))


_WEIGHTS: Mapping[str, StoredWeight] = {
    **SANDWICH_WEIGHTS,
    **QK_NORM_WEIGHTS,
    "layers.{i}.qk_proj": _projections(2),
    "layers.{i}.q_proj": _projections(1),
    "layer_embeddings": StoredWeight(
        Recipe((Source("embed_tokens_per_layer"),), is_table=True),
        Recipe((Source("per_layer_token_embd"),), is_table=True),
    ),
    "layer_embeddings_proj": stored("per_layer_model_projection", "per_layer_model_proj"),
    "layer_embeddings_norm": stored("per_layer_projection_norm", "per_layer_proj_norm"),
    **in_layers(
        {
            "output_scale": stored(Tensor("layer_scalar"), "layer_output_scale"),
            "embedding_gate_proj": stored("per_layer_input_gate", "inp_gate"),
            "embedding_out_proj": stored("per_layer_projection", "proj"),
            "embedding_norm": stored("post_per_layer_input_norm", "post_norm"),
            "dense_post_norm": stored("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            "experts_norm": stored("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            "experts_post_norm": stored("post_feedforward_layernorm_2", "post_ffw_norm_2"),
            "router": stored("router.proj", "ffn_gate_inp"),
            "router_norm": stored(Tensor("router.scale"), Tensor("ffn_gate_inp.scale")),
            "expert_scales": stored(
                Tensor("router.per_expert_scale"), Tensor("ffn_down_exps.scale")
            ),
            "experts.gate_proj": _expert_half(0),
            "experts.up_proj": _expert_half(1),
            "experts.down_proj": stored(Tensor("experts.down_proj"), "ffn_down_exps"),
        }
    ),
}

# -- GGUF ------------------------------------------------------------------------------------------

_LOGITS_SOFTCAP = "final_logit_softcapping"
_SHARED_KV, _EMBEDDING_SIZE = "attention.shared_kv_layers", "embedding_length_per_layer_input"
_SLIDING_KEY_LENGTH = "attention.key_length_swa"
_SLIDING_VALUE_LENGTH = "attention.value_length_swa"
_SLIDING_ROPE_DIM, _SLIDING_ROPE_BASE = "rope.dimension_count_swa", "rope.freq_base_swa"
_UNROTATED = 1e20  # divisors of frequencies at least as large stand for no rotation


def _gguf_config(metadata: GgufMetadata) -> dict[str, Any]:
    layer_types = sliding_pattern(metadata).get("layer_types")
    if layer_types is None or len(layer_types) != num_layers(metadata):
        raise metadata.error(
            SLIDING_PATTERN, f"must say of {num_layers(metadata)} layers what they see"
        )
    full = layer_types.index(FULL) if FULL in layer_types else 0
    sliding = layer_types.index(SLIDING) if SLIDING in layer_types else full
    head_dim = metadata.optional_integer(_SLIDING_KEY_LENGTH) or metadata.integer(KEY_LENGTH)
    for key, length in ((VALUE_LENGTH, KEY_LENGTH), (_SLIDING_VALUE_LENGTH, _SLIDING_KEY_LENGTH)):
        if metadata.get(key) != metadata.get(length):
            raise metadata.error(key, f"must be the same as {metadata.full_key(length)}")
    widths, kv_heads = (metadata.of_layers(key) for key in (FEED_FORWARD, KV_HEADS))
    num_shared = metadata.optional_integer(_SHARED_KV) or 0
    plain = metadata.with_value(FEED_FORWARD, widths[0]).with_value(KV_HEADS, kv_heads[sliding])
    plain = plain.with_value(KEY_LENGTH, head_dim).with_value(VALUE_LENGTH, head_dim)
    plain = plain.with_value(ROPE_DIM, metadata.optional_integer(_SLIDING_ROPE_DIM) or head_dim)
    has_v = metadata.has_tensor(f"blk.{full}.attn_v.weight")
    values = {
        **llama_like_values(replace(plain, rope_factors={})),
        **metadata.given(final_logit_softcapping=_LOGITS_SOFTCAP),
        "layer_types": layer_types,
        "global_head_dim": metadata.integer(KEY_LENGTH),
        "attention_k_eq_v": not has_v,
        "num_global_key_value_heads": kv_heads[full],
        "num_kv_shared_layers": num_shared,
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": metadata.optional_integer(_EMBEDDING_SIZE) or 0,
        "rope_parameters": {
            FULL: _full_rope(metadata),
            SLIDING: {
                "rope_type": "default",
                "rope_theta": metadata.optional_number(_SLIDING_ROPE_BASE) or 1e4,
            },
        },
    }
    if values["hidden_size_per_layer_input"]:
        table = metadata.shapes.get("per_layer_token_embd.weight", (values["vocab_size"],))
        values["vocab_size_per_layer_input"] = table[0]
    if metadata.has("expert_count"):
        counts = gguf_experts(metadata)
        values |= {
            "enable_moe_block": True,
            "num_experts": counts["num_experts"],
            "top_k_experts": counts["num_experts_per_tok"],
            "moe_intermediate_size": metadata.integer(EXPERT_WIDTH),
        }
    return values


def _full_rope(metadata: GgufMetadata) -> dict[str, Any]:
    """The file has divisors of the frequencies: 1 for those that rotate, and a huge number for the others."""
    name = "rope_freqs.weight"
    factors = metadata.rope_factors.get(name, [])
    num_rotated = sum(factor == 1 for factor in factors)
    if not factors or factors != [1.0] * num_rotated + factors[num_rotated:]:
        raise ValueError(f"{metadata.values.path}: tensor {name}: must begin with ones")
    if any(factor < _UNROTATED for factor in factors[num_rotated:]):
        raise ValueError(
            f"{metadata.values.path}: tensor {name}: must be 1, or at least {_UNROTATED:g}"
        )
    return {
        "rope_type": "proportional",
        "rope_theta": metadata.optional_number(ROPE_BASE) or 1e6,
        "partial_rotary_factor": num_rotated / len(factors),
    }


_GGUF_KEYS = frozenset(
    {RMS_EPSILON, WINDOW, SLIDING_PATTERN, ROPE_DIM, ROPE_BASE, _LOGITS_SOFTCAP, _SHARED_KV}
    | {_EMBEDDING_SIZE, _SLIDING_KEY_LENGTH, _SLIDING_VALUE_LENGTH}
    | {_SLIDING_ROPE_DIM, _SLIDING_ROPE_BASE, *EXPERT_KEYS}
)

GEMMA4 = Family(
    architectures=("Gemma4ForCausalLM",),
    model_types=("gemma4_text",),
    read_config=_read_config,
    decoder=Gemma4Decoder,
    weights=_WEIGHTS,
    gguf=GgufFamily("gemma4", _GGUF_KEYS, _gguf_config, variants=APART_GATE_UP),
)

# Without embeddings of the layers and without experts, and with other defaults.
GEMMA4_UNIFIED = Family(
    architectures=("Gemma4UnifiedForCausalLM",),
    model_types=("gemma4_unified_text",),
    read_config=_read_config,
    decoder=Gemma4Decoder,
    weights=_WEIGHTS,
)
