"""Llama with experts in place of the MLP: Qwen3-MoE, OLMoE and Mixtral, whose routers differ."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ExpertsConfig, MLPConfig, ModelConfig
from pellucid.models import config_json
from pellucid.models import gguf_metadata as gguf
from pellucid.models.family import Family, GgufFamily
from pellucid.models.llama import llama_gguf_config
from pellucid.models.qwen import read_qwen3
from pellucid.models.stored_weights import (
    GGUF_PAIRS,
    LLAMA_WEIGHTS,
    QK_NORM_WEIGHTS,
    Half,
    Recipe,
    Source,
    StoredWeight,
    Tensor,
    TransposedOrNot,
    in_layers,
    joined,
    stored,
)

MAX_EXPERTS = 1024  # of a layer

# -- config.json -----------------------------------------------------------------------------------


def read_experts(
    config: JsonObject,
    *,
    count_key: str = "num_experts",
    width_key: str = "moe_intermediate_size",
    **fields: Any,
) -> ExpertsConfig:
    """The experts of a layer.

    Args:
        config: config.json.
        count_key: says how many there are.
        width_key: says how wide each is.
        fields: further ones of `ExpertsConfig`.
    """
    num_experts = config.integer(count_key, maximum=MAX_EXPERTS)
    num_chosen = config.integer("num_experts_per_tok")
    if num_chosen > num_experts:
        raise config.error("num_experts_per_tok", f"must be at most {count_key}={num_experts}")
    return ExpertsConfig(
        num_experts,
        num_chosen,
        config.integer(width_key),
        **{"activation": config_json.read_activation(config, "hidden_act"), **fields},
    )


def all_sparse(model: ModelConfig, experts: ExpertsConfig, num_dense: int = 0) -> ModelConfig:
    """`model` with `experts` in place of each layer's MLP, but for the first `num_dense` layers."""
    sparse = (replace(layer, mlp=None, experts=experts) for layer in model.layers[num_dense:])
    return replace(model, layers=(*model.layers[:num_dense], *sparse))


def some_sparse(
    config: JsonObject, model: ModelConfig, experts: ExpertsConfig, shared: MLPConfig | None = None
) -> ModelConfig:
    """`model` with `experts`, and the expert `shared` by all tokens, in place of the MLP in the layers that
    `decoder_sparse_step` counts and `mlp_only_layers` does not name."""
    step, dense = config.integer("decoder_sparse_step"), _dense_layers(config)
    layers = tuple(
        layer
        if index in dense or (index + 1) % step
        else replace(layer, mlp=shared, experts=experts)
        for index, layer in enumerate(model.layers)
    )
    return replace(model, layers=layers)


def read_shared_expert(config: JsonObject) -> MLPConfig:
    """The expert that all tokens share."""
    width = config.integer("shared_expert_intermediate_size")
    return MLPConfig(width, config_json.read_activation(config, "hidden_act"))


def _read_qwen3_moe(config: JsonObject) -> ModelConfig:
    experts = read_experts(config, normalize=config.boolean("norm_topk_prob"))
    return some_sparse(
        config, read_qwen3(config, config_json.one_window(config_json.used_window(config))), experts
    )


def _dense_layers(config: JsonObject) -> frozenset[int]:
    """`mlp_only_layers`: the layers without experts."""
    layers = config.values.get("mlp_only_layers")
    if layers is None:
        return frozenset()
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise config.error("mlp_only_layers", "must be a list of layer numbers, or null")
    return frozenset(layers)


def _read_olmoe(config: JsonObject) -> ModelConfig:
    if config.values.get("clip_qkv") is not None:
        raise config.error("clip_qkv", "not supported: must be null")
    model = config_json.llama_like(
        config,
        attention={**config_json.attention_biases(config), "qk_norm": "width"},
    )
    experts = read_experts(
        config, width_key="intermediate_size", normalize=config.boolean("norm_topk_prob")
    )
    return all_sparse(model, experts)


def _read_mixtral(config: JsonObject) -> ModelConfig:
    model = config_json.llama_like(
        config,
        windows=config_json.one_window(config.optional_integer("sliding_window")),
    )
    experts = read_experts(
        config, count_key="num_local_experts", width_key="intermediate_size", normalize=True
    )
    return all_sparse(model, experts)


# -- names -----------------------------------------------------------------------------------------


def expert_weights(
    block: str, router: str, gate: str, up: str, down: str
) -> Mapping[str, StoredWeight]:
    """Of a layer whose experts Hugging Face's checkpoints hold in `block`."""
    return in_layers(
        {
            "router": stored(f"{block}.{router}", "ffn_gate_inp"),
            **{
                f"experts.{ours}_proj": stored(
                    f"{block}.experts.{{e}}.{theirs}", f"ffn_{ours}_exps.{{e}}"
                )
                for ours, theirs in (("gate", gate), ("up", up), ("down", down))
            },
        }
    )


EXPERT_WEIGHTS = expert_weights("mlp", "gate", "gate_proj", "up_proj", "down_proj")
# All experts of a layer in one tensor, gate and up joined: [experts, out, in] in Qwen3.5, [experts, in, out] in
# Qwen3-VL.
STACKED_EXPERTS: Mapping[str, Recipe] = {
    f"layers.{{i}}.experts.{ours}_proj": Recipe(
        (Tensor(f"layers.{{i}}.mlp.experts.{theirs}_proj", (TransposedOrNot(), *halves)),)
    )
    for ours, theirs, halves in (
        ("gate", "gate_up", (Half(0),)),
        ("up", "gate_up", (Half(1),)),
        ("down", "down", ()),
    )
}
SHARED_EXPERT_WEIGHTS: Mapping[str, StoredWeight] = {
    **EXPERT_WEIGHTS,
    **in_layers(
        {
            "shared_gate": stored("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            "shared_gate_up_proj": StoredWeight(
                joined("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
                joined("ffn_gate_shexp", "ffn_up_shexp"),
            ),
            "shared_down_proj": stored("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        }
    ),
}
_MIXTRAL_WEIGHTS = expert_weights("block_sparse_moe", "gate", "w1", "w3", "w2")

# -- GGUF ------------------------------------------------------------------------------------------

_COUNT, _CHOSEN = "expert_count", "expert_used_count"
EXPERT_KEYS = frozenset({_COUNT, _CHOSEN, gguf.EXPERT_WIDTH})
# llama.cpp's and Ollama's names of the same: whether the weights of chosen experts are divided by their sum.
NORMALIZED_KEYS = frozenset({"expert_weights_norm", "norm_top_k_prob"})
# llama.cpp's converter can write gate and up of all experts as one tensor, and apart.
JOINED_GATE_UP: Mapping[str, Recipe] = {
    f"layers.{{i}}.experts.{name}_proj": Recipe(
        (Source("blk.{i}.ffn_gate_up_exps", (Half(index),)),)
    )
    for index, name in enumerate(("gate", "up"))
}
APART_GATE_UP: Mapping[str, Recipe] = {
    f"layers.{{i}}.experts.{name}_proj": joined(f"blk.{{i}}.ffn_{name}_exps")
    for name in ("gate", "up")
}


def gguf_experts(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    """The counts of experts in config.json, by every name."""
    return {
        "num_experts": metadata.integer(_COUNT),
        "num_local_experts": metadata.integer(_COUNT),
        "num_experts_per_tok": metadata.integer(_CHOSEN),
    }


def gguf_expert_width(metadata: gguf.GgufMetadata) -> int:
    """How wide each expert is. Some files leave it to the tensors."""
    return metadata.width_of_layers(gguf.EXPERT_WIDTH)


def gguf_shared_width(metadata: gguf.GgufMetadata) -> int:
    """How wide the expert is that all tokens share, likewise."""
    return metadata.width_of_layers(gguf.SHARED_WIDTH)


def gguf_normalizes(metadata: gguf.GgufMetadata, *, default: bool) -> bool:
    """Whether the weights of chosen experts are divided by their sum.

    Args:
        default: what llama.cpp does for the architecture where a file does not say.
    """
    given = [key for key in sorted(NORMALIZED_KEYS) if metadata.get(key) is not None]
    return metadata.boolean(given[0], default) if given else default


def gguf_qwen3_moe(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    """config.json of Qwen 3 with experts."""
    # llama.cpp has experts in all layers.
    return {
        **gguf.llama_like_values(metadata),
        **gguf_experts(metadata),
        "moe_intermediate_size": gguf_expert_width(metadata),
        "norm_topk_prob": gguf_normalizes(metadata, default=True),
    }


def _gguf_olmoe(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    return {
        **gguf.llama_like_values(metadata),
        **gguf_experts(metadata),
        "norm_topk_prob": gguf_normalizes(metadata, default=False),
    }


def _gguf_mixtral(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    return {**llama_gguf_config(metadata), **gguf_experts(metadata)}


def _has_experts(metadata: gguf.GgufMetadata) -> bool:
    return metadata.has(_COUNT)


QWEN3_MOE = Family(
    architectures=("Qwen3MoeForCausalLM",),
    model_types=("qwen3_moe",),
    read_config=_read_qwen3_moe,
    weights={**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS, **EXPERT_WEIGHTS},
    variants=STACKED_EXPERTS,
    gguf=GgufFamily(
        "qwen3moe",
        gguf.LLAMA_KEYS | EXPERT_KEYS | NORMALIZED_KEYS,
        gguf_qwen3_moe,
        variants=JOINED_GATE_UP,
    ),
)

OLMOE = Family(
    architectures=("OlmoeForCausalLM",),
    model_types=("olmoe",),
    read_config=_read_olmoe,
    weights={**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS, **EXPERT_WEIGHTS},
    variants=STACKED_EXPERTS,
    gguf=GgufFamily(
        "olmoe",
        gguf.LLAMA_KEYS | EXPERT_KEYS | NORMALIZED_KEYS,
        _gguf_olmoe,
        variants=JOINED_GATE_UP,
    ),
)

MIXTRAL = Family(
    architectures=("MixtralForCausalLM",),
    model_types=("mixtral",),
    read_config=_read_mixtral,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS, **_MIXTRAL_WEIGHTS},
    gguf=GgufFamily(
        "llama",
        gguf.LLAMA_KEYS | {gguf.WINDOW} | EXPERT_KEYS,
        _gguf_mixtral,
        matches=_has_experts,
        variants=JOINED_GATE_UP,
    ),
)
