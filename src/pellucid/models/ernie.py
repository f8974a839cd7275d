"""ERNIE 4.5 (dense): Llama whose rope rotates pairs of neighbouring dimensions instead of pairs of the two halves."""

from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.config_json import llama_like
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import LLAMA_KEYS, GgufMetadata
from pellucid.models.llama import llama_gguf_config
from pellucid.models.stored_weights import LLAMA_WEIGHTS, PAIRS


def _read_config(config: JsonObject) -> ModelConfig:
    bias = config.boolean("use_bias")
    return llama_like(
        config,
        attention={"qkv_bias": bias, "o_bias": bias},
        mlp_bias=bias,
    )


def _gguf_config(metadata: GgufMetadata) -> dict[str, Any]:
    values = llama_gguf_config(metadata)
    return {**values, "use_bias": values["attention_bias"]}


ERNIE = Family(
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    model_types=("ernie4_5",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **PAIRS},
    gguf=GgufFamily("ernie4_5", LLAMA_KEYS, _gguf_config),
)
