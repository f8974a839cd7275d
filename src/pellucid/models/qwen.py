"""Qwen 2 and 3: Llama with biases of q, k and v, or norms of each head's q and k."""

from collections.abc import Mapping
from typing import Any

from pellucid.json_object import JsonObject
from pellucid.model_config import ModelConfig
from pellucid.models.config_json import Windows, attention_biases, llama_like, mixed_windows
from pellucid.models.family import (
    LLAMA_WEIGHTS,
    QK_NORM_WEIGHTS,
    Family,
    GgufFamily,
)
from pellucid.models.gguf_metadata import RMS_EPSILON, ROPE_KEYS, YARN_KEYS, llama_like_values
from pellucid.models.llama import LlamaDecoder
from pellucid.models.rope_config import FULL, SLIDING


def read_qwen2(config: JsonObject) -> ModelConfig:
    """config.json of Qwen 2."""
    return qwen_like(config, {"qkv_bias": True})


def read_qwen3(config: JsonObject) -> ModelConfig:
    """config.json of Qwen 3."""
    return qwen_like(config, {**attention_biases(config), "qk_norm": "head"})


def qwen_like(config: JsonObject, attention: Mapping[str, Any]) -> ModelConfig:
    """The configuration that Qwen's families share. Arguments are those of `llama_like`."""
    return llama_like(config, windows=_windows, attention=attention)


def _windows(config: JsonObject, num_layers: int) -> Windows:
    window = None
    if config.boolean("use_sliding_window", False):
        window = config.optional_integer("sliding_window", 4096)
    num_full = config.integer("max_window_layers", 28, minimum=0)
    default = [FULL if i < num_full else SLIDING for i in range(num_layers)]
    return mixed_windows(config, window, default)


_GGUF_KEYS = frozenset({RMS_EPSILON, *ROPE_KEYS, *YARN_KEYS})

QWEN2 = Family(
    architectures=("Qwen2ForCausalLM", "MiMoForCausalLM"),
    model_types=(
        "qwen2",
        "mimo",
    ),
    read_config=read_qwen2,
    decoder=LlamaDecoder,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily("qwen2", _GGUF_KEYS, llama_like_values),
)

QWEN3 = Family(
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    read_config=read_qwen3,
    decoder=LlamaDecoder,
    weights={**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS},
    gguf=GgufFamily("qwen3", _GGUF_KEYS, llama_like_values),
)
