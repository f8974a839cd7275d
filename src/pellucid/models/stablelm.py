"""StableLM: Llama with layer norms that have biases; a quarter of each head is rotated."""

from functools import partial
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.config_json import llama_like, same_rope
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import EPSILON, ROPE_KEYS, GgufMetadata, llama_like_values
from pellucid.models.llama_decoder import LayerNormDecoder
from pellucid.models.stored_weights import LLAMA_WEIGHTS


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
    decoder=LayerNormDecoder,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily("stablelm", frozenset({EPSILON, _PARALLEL, *ROPE_KEYS}), _gguf_config),
)
