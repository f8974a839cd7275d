"""GLM-4: Llama whose rope rotates pairs of neighbours in the first half of a head; GLM-4-0414 has Gemma's norms."""

from functools import partial
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.config_json import llama_like, same_rope
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gemma import SandwichDecoder
from pellucid.models.gguf_metadata import NORM_AND_ROPE_KEYS, GgufMetadata, llama_like_values
from pellucid.models.stored_weights import FUSED_GATE_UP, LLAMA_WEIGHTS, PAIRS, in_layers, stored


def _read_config(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        ropes=partial(same_rope, partial_rotary=True),
        attention={"qkv_bias": config.boolean("attention_bias")},
    )


def _gguf_config(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        **llama_like_values(metadata, partial_rotary=True),
        "attention_bias": metadata.has_tensor("blk.0.attn_q.bias"),
    }


GLM = Family(
    architectures=("GlmForCausalLM",),
    model_types=("glm",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **PAIRS, **FUSED_GATE_UP},
)

GLM4 = Family(
    architectures=("Glm4ForCausalLM",),
    model_types=("glm4",),
    read_config=_read_config,
    decoder=SandwichDecoder,
    weights={
        **LLAMA_WEIGHTS,
        **PAIRS,
        **FUSED_GATE_UP,
        **in_layers(
            {
                "attention_post_norm": stored("post_self_attn_layernorm", "post_attention_norm"),
                "mlp_post_norm": stored("post_mlp_layernorm", "post_ffw_norm"),
            }
        ),
    },
    gguf=GgufFamily("glm4", NORM_AND_ROPE_KEYS, _gguf_config),
)
