"""SmolLM3: Llama in which every fourth layer does not rotate queries and keys."""

from collections.abc import Sequence

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig, RopeConfig
from pellucid.models.config_json import Windows, attention_biases, llama_like, mixed_windows
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import LLAMA_KEYS
from pellucid.models.llama import llama_gguf_config
from pellucid.models.rope_config import FULL, SLIDING, read_rope
from pellucid.models.stored_weights import GGUF_PAIRS, LLAMA_WEIGHTS


def _read_config(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        windows=_windows,
        ropes=_ropes,
        attention=attention_biases(config),
        mlp_bias=config.boolean("mlp_bias"),
    )


def _rotates(config: JsonObject, num_layers: int) -> Sequence[bool]:
    """Whether each layer rotates; config.json calls this list "no_rope_layers"."""
    rotates = config.optional_flags("no_rope_layers", num_layers)
    if rotates is not None:
        return rotates
    interval = config.integer("no_rope_layer_interval")
    return [(i + 1) % interval != 0 for i in range(num_layers)]


def _windows(config: JsonObject, num_layers: int) -> Windows:
    slides = config.boolean("use_sliding_window")
    default = [SLIDING if slides and not each else FULL for each in _rotates(config, num_layers)]
    return mixed_windows(config, config.optional_integer("sliding_window"), default)


def _ropes(
    config: JsonObject, head_dim: int, max_position: int, windows: Windows
) -> Sequence[RopeConfig | None]:
    rope = read_rope(config, head_dim, max_position)
    return [rope if rotates else None for rotates in _rotates(config, len(windows))]


SMOLLM3 = Family(
    architectures=("SmolLM3ForCausalLM",),
    model_types=("smollm3",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS},
    gguf=GgufFamily("smollm3", LLAMA_KEYS, llama_gguf_config),
)
