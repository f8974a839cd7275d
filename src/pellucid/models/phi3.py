"""Phi-3, Phi-4 and Phi-4-mini: Llama with joined matrices, windows, partial rotations and LongRoPE."""

from functools import partial
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import gguf_metadata as gguf
from pellucid.models.config_json import llama_like, one_window, same_rope
from pellucid.models.family import Family, GgufFamily
from pellucid.models.stored_weights import FUSED_GATE_UP, LLAMA_WEIGHTS, in_layers, stored


def _read_config(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        windows=one_window(config.optional_integer("sliding_window")),
        ropes=partial(
            same_rope,
            partial_rotary=True,
            default_original_max_position=4096,
            type_aliases={"su": "longrope", "yarn": "longrope"},  # early checkpoints' names
        ),
    )


# The first files of the models with this context do not say that they have windows. As in llama.cpp.
_UNSAID_WINDOW, _CONTEXT_OF_UNSAID, _LAYERS_OF_UNSAID = 2047, 4096, (32, 40)


def _gguf_config(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    values = gguf.llama_like_values(metadata, partial_rotary=True)
    if (
        metadata.get(gguf.WINDOW) is None
        and values["max_position_embeddings"] == _CONTEXT_OF_UNSAID
        and values["num_hidden_layers"] in _LAYERS_OF_UNSAID
    ):
        values["sliding_window"] = _UNSAID_WINDOW
    return values


PHI3 = Family(
    architectures=("Phi3ForCausalLM",),
    model_types=("phi3",),
    read_config=_read_config,
    weights={
        **LLAMA_WEIGHTS,
        **FUSED_GATE_UP,
        **in_layers({"qkv_proj": stored("self_attn.qkv_proj", "attn_qkv")}),
    },
    gguf=GgufFamily("phi3", gguf.NORM_AND_ROPE_KEYS | {gguf.WINDOW}, _gguf_config),
)
