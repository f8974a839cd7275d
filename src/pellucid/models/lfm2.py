"""LFM2 and its mixture of experts: Llama with gated short convolutions in place of attention in most layers."""

from collections.abc import Mapping
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig, ShortConvolutionConfig
from pellucid.models import mixture
from pellucid.models.config_json import layers_with_attention, llama_like, with_recurrent_layers
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import KV_HEADS, LLAMA_KEYS, GgufMetadata, llama_like_values
from pellucid.models.rope_config import FULL
from pellucid.models.stored_weights import (
    LLAMA_WEIGHTS,
    StoredWeight,
    Tensor,
    convolution,
    in_layers,
    joined,
    stored,
)

MAX_KERNEL_SIZE = 256  # rows that a convolution reads
_CONVOLUTION = "conv"  # a type of layers in config.json


# -- config.json -----------------------------------------------------------------------------------


def _read_lfm2(config: JsonObject) -> ModelConfig:
    if "block_ff_dim" in config.values:  # an older name, which transformers takes first
        config = config.with_values(intermediate_size=config.integer("block_ff_dim"))
    return _dense(config.with_values(intermediate_size=_adjusted_width(config)))


def _dense(config: JsonObject) -> ModelConfig:
    """The model with an MLP of `intermediate_size` in all layers."""
    if "tie_embedding" in config.values:  # an older name, which transformers takes first
        config = config.with_values(tie_word_embeddings=config.boolean("tie_embedding"))
    model = llama_like(
        config.without("layer_types"),  # its types are not those of windows
        norm_eps="norm_eps",
        attention={"qk_norm": "head"},
    )
    convolution = ShortConvolutionConfig(
        model.hidden_size,
        config.integer("conv_L_cache", maximum=MAX_KERNEL_SIZE),
        config.boolean("conv_bias"),
    )
    is_full = _full_layers(config, model.num_layers)
    return with_recurrent_layers(model, is_full, convolution)


def _full_layers(config: JsonObject, num_layers: int) -> list[bool]:
    """Which layers have attention: at least one."""
    layer_types = config.optional_strings("layer_types")
    if layer_types is None:
        indices = config.values.get("full_attn_idxs")
        if indices is None:
            return [True] * num_layers
        in_range = isinstance(indices, list) and all(
            type(index) is int and 0 <= index < num_layers for index in indices
        )
        if not in_range or not indices:
            raise config.error(
                "full_attn_idxs", f"must be a list of numbers from 0 to {num_layers - 1}"
            )
        return [layer in indices for layer in range(num_layers)]
    return layers_with_attention(config, layer_types, num_layers, _CONVOLUTION)


def _adjusted_width(config: JsonObject) -> int:
    """The width of the MLPs: two thirds of what config.json says, rounded up."""
    width = config.integer("intermediate_size")
    if not config.boolean("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    multiplier = config.optional_number("block_ffn_dim_multiplier")
    if multiplier is None:
        return width
    multiple = config.integer("block_multiple_of")
    adjusted = -(-int(multiplier * width) // multiple) * multiple
    if adjusted < 1:
        raise config.error("block_ffn_dim_multiplier", "must leave MLPs a width")
    return adjusted


def _read_lfm2_moe(config: JsonObject) -> ModelConfig:
    model = _dense(config)
    experts = mixture.read_experts(
        config,
        activation="silu",
        router="sigmoid",
        normalize=config.boolean("norm_topk_prob"),
        scale=config.number("routed_scaling_factor"),
        selection_bias=config.boolean("use_expert_bias"),
    )
    return mixture.all_sparse(model, experts, config.integer("num_dense_layers", minimum=0))


# -- names -----------------------------------------------------------------------------------------

_LFM2_WEIGHTS: Mapping[str, StoredWeight] = {
    **LLAMA_WEIGHTS,
    **in_layers(
        {
            "attention_norm": stored("operator_norm", "attn_norm"),
            "mlp_norm": stored("ffn_norm", "ffn_norm"),
            "o_proj": stored("self_attn.out_proj", "attn_output"),
            "q_norm": stored("self_attn.q_layernorm", "attn_q_norm"),
            "k_norm": stored("self_attn.k_layernorm", "attn_k_norm"),
            "gate_up_proj": StoredWeight(
                joined("feed_forward.w1", "feed_forward.w3"), joined("ffn_gate", "ffn_up")
            ),
            "down_proj": stored("feed_forward.w2", "ffn_down"),
            "conv_in_proj": stored("conv.in_proj", "shortconv.in_proj"),
            "conv": convolution("conv.conv", "shortconv.conv"),
            "conv_out_proj": stored("conv.out_proj", "shortconv.out_proj"),
        }
    ),
    "norm": stored("embedding_norm", "token_embd_norm"),
}
_LFM2_MOE_WEIGHTS: Mapping[str, StoredWeight] = {
    **_LFM2_WEIGHTS,
    **mixture.expert_weights("feed_forward", "gate", "w1", "w3", "w2"),
    # A tensor called expert_bias, of no module.
    **in_layers({"selection": stored(Tensor("feed_forward.expert"), "exp_probs_b")}),
}

# -- GGUF ------------------------------------------------------------------------------------------

_KERNEL_SIZE = "shortconv.l_cache"
_NUM_DENSE = "leading_dense_block_count"
_GATING, _SCALE = "expert_gating_func", "expert_weights_scale"
_SIGMOID = 2  # of llama.cpp's gating functions
_KEYS = LLAMA_KEYS | {_KERNEL_SIZE}


def _gguf_lfm2(metadata: GgufMetadata) -> dict[str, Any]:
    """kv-heads are given for each layer; 0 means a convolution."""
    kv_heads = metadata.of_layers(KV_HEADS, minimum=0)
    counts = {count for count in kv_heads if count}
    if len(counts) != 1:
        raise metadata.error(KV_HEADS, "must be 0 for a convolution, else the same for all layers")
    values = llama_like_values(metadata.with_value(KV_HEADS, counts.pop()))
    return {
        **values,
        "norm_eps": values["rms_norm_eps"],
        "layer_types": [FULL if count else _CONVOLUTION for count in kv_heads],
        "conv_L_cache": metadata.integer(_KERNEL_SIZE),
        "conv_bias": metadata.has_tensor("blk.0.shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def _gguf_lfm2_moe(metadata: GgufMetadata) -> dict[str, Any]:
    if metadata.get(_GATING, _SIGMOID) != _SIGMOID:
        raise metadata.error(_GATING, f"supported is {_SIGMOID}, the sigmoid")
    num_dense = metadata.optional_integer(_NUM_DENSE) or 0
    return {
        **_gguf_lfm2(metadata),
        **mixture.gguf_experts(metadata),
        "moe_intermediate_size": mixture.gguf_expert_width(metadata),
        "num_dense_layers": num_dense,
        "use_expert_bias": metadata.has_tensor(f"blk.{num_dense}.exp_probs_b.bias"),
        "norm_topk_prob": mixture.gguf_normalizes(metadata, default=True),
        **metadata.given(routed_scaling_factor=_SCALE),
    }


LFM2 = Family(
    architectures=("Lfm2ForCausalLM",),
    model_types=("lfm2",),
    read_config=_read_lfm2,
    weights=_LFM2_WEIGHTS,
    gguf=GgufFamily("lfm2", _KEYS, _gguf_lfm2),
)

LFM2_MOE = Family(
    architectures=("Lfm2MoeForCausalLM",),
    model_types=("lfm2_moe",),
    read_config=_read_lfm2_moe,
    weights=_LFM2_MOE_WEIGHTS,
    gguf=GgufFamily(
        "lfm2moe",
        _KEYS | mixture.EXPERT_KEYS | mixture.NORMALIZED_KEYS | {_NUM_DENSE, _GATING, _SCALE},
        _gguf_lfm2_moe,
        variants=mixture.JOINED_GATE_UP,
    ),
)
