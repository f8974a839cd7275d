"""OLMo 2 and 3: Llama with norms after attention and the MLP instead of before, and norms of q and k over all heads.

OLMo 3 has windows, and scales the rotations of its full layers alone.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pellucid.backends.ops import Array, ForwardBatch, KVLayer, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import config_json
from pellucid.models import gguf_metadata as gguf
from pellucid.models.family import Family, GgufFamily
from pellucid.models.layers import Attention, RMSNorm, feed_forward
from pellucid.models.llama_decoder import LlamaDecoder
from pellucid.models.rope_config import FULL, SLIDING, every_nth_full
from pellucid.models.stored_weights import (
    LLAMA_WEIGHTS,
    QK_NORM_WEIGHTS,
    StoredWeight,
    in_layers,
    stored,
)


class PostNormLayer:
    """One layer: attention, then the MLP; the output of each is normed and added to its input."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        model, prefix = (config, parameters, ops), f"layers.{layer}"
        self.attention = Attention(*model, layer)
        self.attention_post_norm = RMSNorm(*model, f"{prefix}.attention_post_norm")
        self.mlp = feed_forward(*model, layer)
        self.mlp_post_norm = RMSNorm(*model, f"{prefix}.mlp_post_norm")

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        x = x + self.attention_post_norm(self.attention(x, batch, kv_layer))
        return x + self.mlp_post_norm(self.mlp(x))


class PostNormDecoder(LlamaDecoder):
    """Llama's embedding, norm and head around layers with norms after attention and the MLP."""

    layer_class = PostNormLayer


POST_NORM_WEIGHTS: Mapping[str, StoredWeight] = {
    **{
        module: weight
        for module, weight in LLAMA_WEIGHTS.items()
        if module not in ("layers.{i}.attention_norm", "layers.{i}.mlp_norm")
    },
    **QK_NORM_WEIGHTS,
    **in_layers(
        {
            "attention_post_norm": stored("post_attention_layernorm", "post_attention_norm"),
            "mlp_post_norm": stored("post_feedforward_layernorm", "post_ffw_norm"),
        }
    ),
}


def _read_config(
    config: JsonObject,
    windows: config_json.WindowsReader | None = None,
    ropes: config_json.RopesReader = config_json.same_rope,
) -> ModelConfig:
    return config_json.llama_like(
        config,
        windows=windows,
        ropes=ropes,
        attention={**config_json.attention_biases(config), "qk_norm": "width"},
    )


def _windows(config: JsonObject, num_layers: int) -> config_json.Windows:
    window = config.optional_integer("sliding_window")
    return config_json.mixed_windows(config, window, every_nth_full(num_layers, 4))


def _gguf_olmo3(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    values = gguf.llama_like_values(metadata)
    full = values["rope_parameters"]
    sliding = {"rope_type": "default", "rope_theta": full["rope_theta"]}
    return {
        **values,
        "rope_parameters": {FULL: full, SLIDING: sliding},
        **gguf.sliding_pattern(metadata),
    }


OLMO2 = Family(
    architectures=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    read_config=_read_config,
    decoder=PostNormDecoder,
    weights=POST_NORM_WEIGHTS,
    gguf=GgufFamily("olmo2", gguf.LLAMA_KEYS, gguf.llama_like_values),
)

OLMO3 = Family(
    architectures=("Olmo3ForCausalLM",),
    model_types=("olmo3",),
    read_config=partial(_read_config, windows=_windows, ropes=config_json.ropes_by_window),
    decoder=PostNormDecoder,
    weights=POST_NORM_WEIGHTS,
    gguf=GgufFamily(
        "olmo2",
        gguf.LLAMA_KEYS | {gguf.WINDOW, gguf.SLIDING_PATTERN},
        _gguf_olmo3,
        matches=lambda metadata: metadata.has(gguf.WINDOW),
    ),
)
