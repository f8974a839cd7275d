"""Mistral: Llama with a sliding window. Ministral: windows of some layers; Ministral 3: queries that grow
with their position."""

from dataclasses import replace
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig, RopeGrowth
from pellucid.models import gguf_metadata as gguf
from pellucid.models.config_json import Windows, llama_like, mixed_windows, one_window
from pellucid.models.family import Family, GgufFamily
from pellucid.models.llama import LLAMA_GGUF
from pellucid.models.rope_config import FULL, SLIDING, rope_object
from pellucid.models.stored_weights import GGUF_PAIRS, LLAMA_WEIGHTS


def _read_mistral(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        windows=one_window(config.optional_integer("sliding_window")),
    )


def _read_ministral(config: JsonObject) -> ModelConfig:
    return llama_like(config, windows=_ministral_windows)


# Keys that Ministral 3 has beside those of YaRN.
_BETA, _MAX_POSITION = "llama_4_scaling_beta", "max_position_embeddings"


def _read_ministral3(config: JsonObject) -> ModelConfig:
    rope = rope_object(config)
    beta = rope.nonzero_number(_BETA)
    growth = None
    if beta is not None:
        growth = RopeGrowth(beta, rope.integer("original_max_position_embeddings"))
    yarn = {key: value for key, value in rope.values.items() if key not in (_BETA, _MAX_POSITION)}
    return llama_like(
        config.without("rope_scaling").with_values(rope_parameters=yarn),
        windows=one_window(config.optional_integer("sliding_window")),
        attention={"query_growth": growth},
    )


_GROWTH_BETA = "attention.temperature_scale"


def _gguf_ministral3(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    values = gguf.llama_like_values(metadata)
    keys = {"mscale_all_dim": gguf.YARN_LOG_MULTIPLIER, "llama_4_scaling_beta": _GROWTH_BETA}
    numbers = ((name, metadata.optional_number(key)) for name, key in keys.items())
    scaled = {name: number for name, number in numbers if number is not None}
    rope = {**values["rope_parameters"], **scaled}
    if scaled and rope.get("rope_type") != "yarn":
        raise metadata.error(gguf.ROPE_SCALING, "must be yarn for a model whose queries grow")
    if "mscale_all_dim" in rope:
        rope["mscale"] = 1.0
    return {**values, "rope_parameters": rope}


def _ministral_windows(config: JsonObject, num_layers: int) -> Windows:
    window = config.optional_integer("sliding_window")
    default = [FULL if window is None else SLIDING] * num_layers
    return mixed_windows(config, window, default)


MISTRAL = Family(
    architectures=("MistralForCausalLM",),
    model_types=("mistral",),
    read_config=_read_mistral,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS},
    gguf=replace(  # llama.cpp has no name of its own for it
        LLAMA_GGUF,
        keys=LLAMA_GGUF.keys | {gguf.WINDOW},
        matches=lambda metadata: metadata.has(gguf.WINDOW),
    ),
)

MINISTRAL = Family(
    architectures=("MinistralForCausalLM",),
    model_types=("ministral",),
    read_config=_read_ministral,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS},
)

MINISTRAL3 = Family(
    architectures=("Ministral3ForCausalLM",),
    model_types=("ministral3",),
    read_config=_read_ministral3,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS},
    gguf=GgufFamily(
        "mistral3",
        gguf.LLAMA_KEYS | {_GROWTH_BETA, gguf.YARN_LOG_MULTIPLIER},
        _gguf_ministral3,
    ),
)
