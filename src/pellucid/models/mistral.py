"""Mistral: Llama with a sliding window. Ministral: windows of some layers."""

from pellucid.config import ModelConfig
from pellucid.json_object import JsonObject
from pellucid.models.config_json import Windows, llama_like, mixed_windows, one_window
from pellucid.models.family import LLAMA_WEIGHTS, Family, GgufFamily
from pellucid.models.gguf_metadata import WINDOW
from pellucid.models.llama import LLAMA_GGUF_KEYS, LlamaDecoder, llama_gguf_config
from pellucid.models.rope_config import FULL, SLIDING


def _read_mistral(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        max_position=131_072,
        num_kv_heads=8,
        windows=one_window(config.optional_integer("sliding_window", 4096)),
    )


def _read_ministral(config: JsonObject) -> ModelConfig:
    return llama_like(config, max_position=131_072, num_kv_heads=8, windows=_ministral_windows)


def _ministral_windows(config: JsonObject, num_layers: int) -> Windows:
    window = config.optional_integer("sliding_window", 4096)
    default = [FULL if window is None else SLIDING] * num_layers
    return mixed_windows(config, window, default)


MISTRAL = Family(
    architectures=("MistralForCausalLM",),
    model_types=("mistral",),
    read_config=_read_mistral,
    decoder=LlamaDecoder,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily(
        "llama",  # llama.cpp has no name of its own for it
        LLAMA_GGUF_KEYS | {WINDOW},
        llama_gguf_config,
        interleaved=True,
        matches=lambda metadata: bool(metadata.get(WINDOW)),
    ),
)

MINISTRAL = Family(
    architectures=("MinistralForCausalLM",),
    model_types=("ministral",),
    read_config=_read_ministral,
    decoder=LlamaDecoder,
    weights=LLAMA_WEIGHTS,
)
