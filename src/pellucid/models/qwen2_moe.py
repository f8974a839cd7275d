"""Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): Qwen 2 with experts, beside one that all tokens share."""

from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import mixture
from pellucid.models.config_json import Windows, llama_like, mixed_windows, used_window
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import LLAMA_KEYS, SHARED_WIDTH, GgufMetadata, llama_like_values
from pellucid.models.rope_config import FULL, SLIDING
from pellucid.models.stored_weights import LLAMA_WEIGHTS


def _read_config(config: JsonObject) -> ModelConfig:
    model = llama_like(
        config,
        windows=_windows,
        attention={"qkv_bias": config.boolean("qkv_bias")},
    )
    experts = mixture.read_experts(
        config, normalize=config.boolean("norm_topk_prob"), shared_gate=True
    )
    return mixture.some_sparse(config, model, experts, mixture.read_shared_expert(config))


def _windows(config: JsonObject, num_layers: int) -> Windows:
    # Unlike in Qwen 2, the first layers have it, every other one of them.
    num_sliding = config.integer("max_window_layers", minimum=0)
    default = [SLIDING if i < num_sliding and i % 2 == 0 else FULL for i in range(num_layers)]
    return mixed_windows(config, used_window(config), default)


def _gguf_config(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        **llama_like_values(metadata),
        **mixture.gguf_experts(metadata),
        "moe_intermediate_size": mixture.gguf_expert_width(metadata),
        "shared_expert_intermediate_size": mixture.gguf_shared_width(metadata),
        "norm_topk_prob": mixture.gguf_normalizes(metadata, default=False),
    }


QWEN2_MOE = Family(
    architectures=("Qwen2MoeForCausalLM",),
    model_types=("qwen2_moe",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **mixture.SHARED_EXPERT_WEIGHTS},
    variants=mixture.STACKED_EXPERTS,
    gguf=GgufFamily(
        "qwen2moe",
        LLAMA_KEYS | mixture.EXPERT_KEYS | mixture.NORMALIZED_KEYS | {SHARED_WIDTH},
        _gguf_config,
        variants=mixture.JOINED_GATE_UP,
    ),
)
