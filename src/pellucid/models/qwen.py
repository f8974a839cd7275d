"""Qwen 2 and 3: Llama with biases of q, k and v, or norms of each head's q and k."""

from functools import partial

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import config_json
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import LLAMA_KEYS, llama_like_values
from pellucid.models.rope_config import FULL, SLIDING
from pellucid.models.stored_weights import LLAMA_WEIGHTS, QK_NORM_WEIGHTS


def read_qwen2(config: JsonObject) -> ModelConfig:
    """config.json of Qwen 2."""
    return config_json.llama_like(config, windows=_windows, attention={"qkv_bias": True})


def read_qwen3(config: JsonObject, windows: config_json.WindowsReader | None = None) -> ModelConfig:
    """config.json of Qwen 3. `windows` is that of `llama_like`."""
    attention = {**config_json.attention_biases(config), "qk_norm": "head"}
    return config_json.llama_like(config, windows=windows, attention=attention)


def _windows(config: JsonObject, num_layers: int) -> config_json.Windows:
    num_full = config.integer("max_window_layers", minimum=0)
    default = [FULL if i < num_full else SLIDING for i in range(num_layers)]
    return config_json.mixed_windows(config, config_json.used_window(config), default)


QWEN2 = Family(
    architectures=("Qwen2ForCausalLM", "MiMoForCausalLM"),
    model_types=("qwen2", "mimo"),
    read_config=read_qwen2,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily("qwen2", LLAMA_KEYS, llama_like_values),
)

QWEN3 = Family(
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    read_config=partial(read_qwen3, windows=_windows),
    weights={**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS},
    gguf=GgufFamily("qwen3", LLAMA_KEYS, llama_like_values),
)
