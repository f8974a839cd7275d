"""Granite 3 and 4: Llama whose embeddings, scores, residuals and logits are multiplied by constants.

The multiplier r of a residual, x + r f(norm(x)), needs no op. With x = r u the layer is u + f(norm(x)),
and RMSNorm of r u with epsilon e is RMSNorm of u with e / r^2: the decoder computes u.

Granite 3 also comes with experts. Granite 4.0 has a class for models of attention and Mamba-2 layers, with
which models of attention alone are published too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig, RopeConfig
from pellucid.models import config_json, mixture
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import ATTENTION_SCALE, KV_HEADS, LLAMA_KEYS, GgufMetadata
from pellucid.models.llama import llama_gguf_config
from pellucid.models.rope_config import FULL
from pellucid.models.stored_weights import (
    GGUF_PAIRS,
    LLAMA_WEIGHTS,
    Half,
    Source,
    StoredWeight,
    in_layers,
    joined,
    stored,
)

_MAX_MULTIPLIER = 10_000  # checkpoints have 0.01 to 16
_NO_EXPERTS = "no family has what it needs: experts beside an MLP without a gate; what loads: 0"
_FULL_TYPES = ("attention", FULL)  # before transformers 5, and since

# -- config.json -----------------------------------------------------------------------------------


def _read_granite(config: JsonObject) -> ModelConfig:
    return _granite(config, mlp_bias=config.boolean("mlp_bias"))


def _read_granite_moe(config: JsonObject) -> ModelConfig:
    experts = mixture.read_experts(
        config,
        count_key="num_local_experts",
        width_key="intermediate_size",
        router="softmax_chosen",
        normalize=False,
    )
    return mixture.all_sparse(_granite(config), experts)


def _read_granite_hybrid(config: JsonObject) -> ModelConfig:
    layer_types = config.optional_strings("layer_types")
    if layer_types is None or not set(_FULL_TYPES).issuperset(layer_types):
        raise config.error(
            "layer_types",
            "no family has what it needs: Mamba-2 layers; what loads: attention in all layers",
        )
    if config.integer("num_local_experts", minimum=0):
        raise config.error("num_local_experts", _NO_EXPERTS)
    position_type = config.values.get("position_embedding_type")
    if position_type not in (None, "nope", "rope"):
        raise config.error("position_embedding_type", 'must be "rope", "nope" or null')
    # Its MLP is the expert that all tokens would share.
    width = config.integer("shared_intermediate_size")
    model = _granite(
        config.without("layer_types").with_values(intermediate_size=width),
        ropes=config_json.same_rope if position_type == "rope" else _no_ropes,
    )
    if len(layer_types) != model.num_layers:
        raise config.error("layer_types", f"must be {model.num_layers} types")
    return model


def _granite(
    config: JsonObject,
    *,
    ropes: config_json.RopesReader = config_json.same_rope,
    mlp_bias: bool = False,
) -> ModelConfig:
    """The model with an MLP in all layers. Arguments are those of `llama_like`."""
    model = config_json.llama_like(
        config,
        ropes=ropes,
        attention={
            **config_json.attention_biases(config),
            "scale": _multiplier(config, "attention_multiplier"),
        },
        mlp_bias=mlp_bias,
    )
    residual = _multiplier(config, "residual_multiplier")
    return replace(
        model,
        embedding_scale=_multiplier(config, "embedding_multiplier") / residual,
        norm_eps=model.norm_eps / residual**2,
        logits_scale=1 / _multiplier(config, "logits_scaling"),
    )


def _multiplier(config: JsonObject, key: str) -> float:
    multiplier = config.number(key)
    if not 1 / _MAX_MULTIPLIER <= multiplier <= _MAX_MULTIPLIER:
        raise config.error(key, f"must be from 1/{_MAX_MULTIPLIER} to {_MAX_MULTIPLIER}")
    return multiplier


def _no_ropes(
    _config: JsonObject, _head_dim: int, _max_position: int, windows: config_json.Windows
) -> list[RopeConfig | None]:
    return [None] * len(windows)


# -- names -----------------------------------------------------------------------------------------

_MOE_WEIGHTS: Mapping[str, StoredWeight] = {
    **LLAMA_WEIGHTS,
    **GGUF_PAIRS,
    **in_layers(
        {
            "router": stored("block_sparse_moe.router.layer", "ffn_gate_inp"),
            **{
                f"experts.{name}_proj": stored(
                    Source("block_sparse_moe.input_linear", (Half(index),)),
                    Source("ffn_gate_up_exps", (Half(index),)),
                )
                for index, name in enumerate(("gate", "up"))
            },
            "experts.down_proj": stored("block_sparse_moe.output_linear", "ffn_down_exps"),
        }
    ),
}
_HYBRID_WEIGHTS: Mapping[str, StoredWeight] = {
    **LLAMA_WEIGHTS,
    **GGUF_PAIRS,
    **in_layers(
        {
            "gate_up_proj": StoredWeight(
                joined("shared_mlp.input_linear"), joined("ffn_gate", "ffn_up")
            ),
            "down_proj": stored("shared_mlp.output_linear", "ffn_down"),
        }
    ),
}

# -- GGUF ------------------------------------------------------------------------------------------

_EMBEDDING_SCALE, _RESIDUAL_SCALE, _LOGIT_SCALE = "embedding_scale", "residual_scale", "logit_scale"
_IS_ROTATED = "rope.scaling.finetuned"  # what llama.cpp says with it in these architectures
# The converter of hybrids writes these for models of attention alone, too.
_OF_HYBRIDS = frozenset(
    {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank"}
    | {"expert_shared_feed_forward_length"}
)
_NUM_EXPERTS = "expert_count"
_KEYS = LLAMA_KEYS | {ATTENTION_SCALE, _EMBEDDING_SCALE, _RESIDUAL_SCALE, _LOGIT_SCALE}


def _gguf_granite(metadata: GgufMetadata) -> dict[str, Any]:
    if not metadata.boolean(_IS_ROTATED, True):
        raise metadata.error(
            _IS_ROTATED, "must be true: this architecture rotates queries and keys"
        )
    return _gguf_values(metadata)


def _gguf_granite_moe(metadata: GgufMetadata) -> dict[str, Any]:
    return {**_gguf_granite(metadata), **mixture.gguf_experts(metadata)}


def _gguf_granite_hybrid(metadata: GgufMetadata) -> dict[str, Any]:
    if 0 in metadata.of_layers(KV_HEADS, minimum=0):
        raise metadata.error(
            KV_HEADS,
            "no family has what it needs: Mamba-2 layers, one for each 0; what loads: attention in all layers",
        )
    if metadata.has(_NUM_EXPERTS):
        raise metadata.error(_NUM_EXPERTS, _NO_EXPERTS)
    values = _gguf_values(metadata)
    return {
        **values,
        "layer_types": [FULL] * values["num_hidden_layers"],
        "num_local_experts": 0,
        "position_embedding_type": "rope" if metadata.boolean(_IS_ROTATED, True) else "nope",
        "shared_intermediate_size": values["intermediate_size"],
    }


def _gguf_values(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        **llama_gguf_config(metadata),
        **metadata.given(
            attention_multiplier=ATTENTION_SCALE,
            embedding_multiplier=_EMBEDDING_SCALE,
            residual_multiplier=_RESIDUAL_SCALE,
            logits_scaling=_LOGIT_SCALE,
        ),
    }


GRANITE = Family(
    architectures=("GraniteForCausalLM",),
    model_types=("granite",),
    read_config=_read_granite,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS},
    gguf=GgufFamily("granite", _KEYS, _gguf_granite, left_over=_OF_HYBRIDS),
)

GRANITE_MOE = Family(
    architectures=("GraniteMoeForCausalLM",),
    model_types=("granitemoe",),
    read_config=_read_granite_moe,
    weights=_MOE_WEIGHTS,
    gguf=GgufFamily(
        "granitemoe",
        _KEYS | mixture.EXPERT_KEYS,
        _gguf_granite_moe,
        variants=mixture.APART_GATE_UP,
    ),
)

GRANITE_HYBRID = Family(
    architectures=("GraniteMoeHybridForCausalLM",),
    model_types=("granitemoehybrid",),
    read_config=_read_granite_hybrid,
    weights=_HYBRID_WEIGHTS,
    gguf=GgufFamily(
        "granitehybrid",
        _KEYS | mixture.EXPERT_KEYS,
        _gguf_granite_hybrid,
        left_over=_OF_HYBRIDS,
    ),
)
