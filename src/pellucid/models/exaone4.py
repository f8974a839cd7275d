"""EXAONE 4: OLMo's norms after attention and the MLP, norms of each head's q and k. If some layers have a window,
full layers do not rotate."""

from collections.abc import Sequence
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig, RopeConfig
from pellucid.models import gguf_metadata as gguf
from pellucid.models.config_json import Windows, llama_like, mixed_windows
from pellucid.models.family import Family, GgufFamily
from pellucid.models.olmo import POST_NORM_WEIGHTS, PostNormDecoder
from pellucid.models.rope_config import FULL, every_nth_full, read_rope


def _read_config(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        windows=_windows,
        ropes=_ropes,
        attention={"qk_norm": "head"},
    )


def _windows(config: JsonObject, num_layers: int) -> Windows:
    window = config.optional_integer("sliding_window")
    if window is None or config.values.get("layer_types") is not None:
        return mixed_windows(config, window, [FULL] * num_layers)
    period = config.integer("sliding_window_pattern")
    return mixed_windows(config, window, every_nth_full(num_layers, period))


def _ropes(
    config: JsonObject, head_dim: int, max_position: int, windows: Windows
) -> Sequence[RopeConfig | None]:
    rope = read_rope(config, head_dim, max_position)
    if config.optional_integer("sliding_window") is None:
        return [rope] * len(windows)
    return [rope if window is not None else None for window in windows]


def _gguf_config(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    values = {"sliding_window": None, **gguf.llama_like_values(metadata)}
    return {**values, **gguf.sliding_pattern(metadata)}


EXAONE4 = Family(
    architectures=("Exaone4ForCausalLM",),
    model_types=("exaone4",),
    read_config=_read_config,
    decoder=PostNormDecoder,
    weights=POST_NORM_WEIGHTS,
    gguf=GgufFamily(
        "exaone4", gguf.NORM_AND_ROPE_KEYS | {gguf.WINDOW, gguf.SLIDING_PATTERN}, _gguf_config
    ),
)
