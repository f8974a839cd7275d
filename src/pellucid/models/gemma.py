"""Gemma 1, 2 and 3: Llama whose embeddings are scaled, 2 and 3 with norms before and after attention and the MLP.

Gemma 2 caps scores and logits. Gemma 3 norms q and k of each head, and its layers with a window have another
rope base than full layers. Checkpoints store the norms' weights minus 1.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pellucid.backends.ops import Array, ForwardBatch, KVLayer, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import config_json
from pellucid.models import gguf_metadata as gguf
from pellucid.models.family import Family, GgufFamily
from pellucid.models.layers import RMSNorm
from pellucid.models.llama_decoder import LlamaDecoder, LlamaLayer
from pellucid.models.rope_config import FULL, SLIDING, every_nth_full
from pellucid.models.stored_weights import (
    LLAMA_WEIGHTS,
    QK_NORM_WEIGHTS,
    StoredWeight,
    in_layers,
    stored,
    with_offset,
)


class SandwichLayer(LlamaLayer):
    """One layer: attention, then the MLP, normed before and after, and added to the input."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        super().__init__(config, parameters, ops, layer)
        model, prefix = (config, parameters, ops), f"layers.{layer}"
        self.attention_post_norm = RMSNorm(*model, f"{prefix}.attention_post_norm")
        self.mlp_post_norm = RMSNorm(*model, f"{prefix}.mlp_post_norm")

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        y = self.attention(self.attention_norm(x), batch, kv_layer)
        x = x + self.attention_post_norm(y)
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))


class SandwichDecoder(LlamaDecoder):
    """Llama's embedding, norm and head around layers that norm before and after each part."""

    layer_class = SandwichLayer


SANDWICH_WEIGHTS: Mapping[str, StoredWeight] = {
    **LLAMA_WEIGHTS,
    **in_layers(
        {
            "attention_post_norm": stored("post_attention_layernorm", "post_attention_norm"),
            "mlp_norm": stored("pre_feedforward_layernorm", "ffn_norm"),
            "mlp_post_norm": stored("post_feedforward_layernorm", "post_ffw_norm"),
        }
    ),
}


# -- config.json -----------------------------------------------------------------------------------


def _read_gemma(config: JsonObject) -> ModelConfig:
    _check_causal(config)
    # The official releases say gelu, and were trained with its approximation.
    if config.values.get("hidden_act") == "gelu":
        config = config.with_values(hidden_act="gelu_pytorch_tanh")
    model = config_json.llama_like(
        config,
        attention=config_json.attention_biases(config),
    )
    return replace(model, embedding_scale=math.sqrt(model.hidden_size))


def _read_gemma2(config: JsonObject) -> ModelConfig:
    return _gemma(
        config,
        windows=_gemma2_windows,
        ropes=config_json.same_rope,
        attention={"softcap": config.optional_number("attn_logit_softcapping")},
    )


def _read_gemma3(config: JsonObject) -> ModelConfig:
    return _gemma(
        config,
        windows=_gemma3_windows,
        ropes=partial(config_json.ropes_by_window, sliding_theta_key="rope_local_base_freq"),
        attention={"qk_norm": "head"},
    )


def _gemma(
    config: JsonObject,
    *,
    windows: config_json.WindowsReader,
    ropes: config_json.RopesReader,
    attention: Mapping[str, Any],
) -> ModelConfig:
    _check_causal(config)
    model = config_json.llama_like(
        config,
        activation="hidden_activation",
        windows=windows,
        ropes=ropes,
        attention={
            "scale": config.number("query_pre_attn_scalar") ** -0.5,
            **config_json.attention_biases(config),
            **attention,
        },
    )
    return replace(
        model,
        logits_softcap=config.optional_number("final_logit_softcapping"),
        embedding_scale=math.sqrt(model.hidden_size),
    )


def _check_causal(config: JsonObject) -> None:
    if config.values.get("use_bidirectional_attention"):
        raise config.error(
            "use_bidirectional_attention",
            "only causal attention is supported: must be false or null",
        )


def _gemma2_windows(config: JsonObject, num_layers: int, period: int = 2) -> config_json.Windows:
    window = config.optional_integer("sliding_window")
    return config_json.mixed_windows(config, window, every_nth_full(num_layers, period))


def _gemma3_windows(config: JsonObject, num_layers: int) -> config_json.Windows:
    return _gemma2_windows(config, num_layers, config.integer("sliding_window_pattern", 6))


# -- GGUF ------------------------------------------------------------------------------------------

_SOFTCAP, _LOGITS_SOFTCAP = "attn_logit_softcapping", "final_logit_softcapping"
_SLIDING_ROPE_BASE = "rope.freq_base_swa"
# llama.cpp knows by the number of layers which models scale scores by the share of the hidden size.
_SCALED_CONTEXT = 131_072
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def _gguf_gemma2(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    values = gguf.llama_like_values(metadata)
    return {
        **values,
        "query_pre_attn_scalar": _query_scalar(metadata, values, _GEMMA2_27B_LAYERS),
        **metadata.given(attn_logit_softcapping=_SOFTCAP, final_logit_softcapping=_LOGITS_SOFTCAP),
    }


def _gguf_gemma3(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    if metadata.get(gguf.RMS_EPSILON) is None:
        metadata = _with_what_ollama_takes_for_granted(metadata)
    values = gguf.llama_like_values(metadata)
    base = metadata.optional_number(_SLIDING_ROPE_BASE) or 10_000.0
    values["rope_parameters"] = {
        FULL: {"rope_theta": 1e6, **values["rope_parameters"]},
        SLIDING: {"rope_type": "default", "rope_theta": base},
    }
    return {
        **values,
        "query_pre_attn_scalar": _query_scalar(metadata, values, _GEMMA3_27B_LAYERS),
        **metadata.given(final_logit_softcapping=_LOGITS_SOFTCAP),
        **gguf.sliding_pattern(metadata),
    }


def _with_what_ollama_takes_for_granted(metadata: gguf.GgufMetadata) -> gguf.GgufMetadata:
    """Ollama's first converter left out what is the same for all models of the family, and the scaling of those
    with a context of 131,072."""
    metadata = metadata.with_value(gguf.RMS_EPSILON, 1e-6)
    if (
        metadata.get(gguf.ROPE_SCALING) is None
        and metadata.integer(gguf.CONTEXT) >= _SCALED_CONTEXT
    ):
        metadata = metadata.with_value(gguf.ROPE_SCALING, "linear").with_value(
            gguf.ROPE_SCALING_FACTOR, 8.0
        )
    return metadata


def _query_scalar(
    metadata: gguf.GgufMetadata, values: Mapping[str, Any], layers_of_27b: int
) -> float:
    if (scale := metadata.optional_number(gguf.ATTENTION_SCALE)) is not None:
        return scale**-2
    if values["num_hidden_layers"] == layers_of_27b:
        return float(values["hidden_size"] // values["num_attention_heads"])
    return float(values["head_dim"])


GEMMA = Family(
    architectures=("GemmaForCausalLM",),
    model_types=("gemma",),
    read_config=_read_gemma,
    weights=with_offset(LLAMA_WEIGHTS, 1.0),
    gguf=GgufFamily(
        "gemma",
        frozenset({gguf.RMS_EPSILON, gguf.ROPE_DIM, gguf.ROPE_BASE}),
        gguf.llama_like_values,
    ),
)

GEMMA2 = Family(
    architectures=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    read_config=_read_gemma2,
    decoder=SandwichDecoder,
    weights=with_offset(SANDWICH_WEIGHTS, 1.0),
    gguf=GgufFamily(
        "gemma2",
        frozenset(
            {
                gguf.RMS_EPSILON,
                gguf.WINDOW,
                _SOFTCAP,
                _LOGITS_SOFTCAP,
                gguf.ATTENTION_SCALE,
                gguf.ROPE_DIM,
                gguf.ROPE_BASE,
            }
        ),
        _gguf_gemma2,
    ),
)

GEMMA3 = Family(
    architectures=("Gemma3ForCausalLM",),
    model_types=("gemma3_text",),
    read_config=_read_gemma3,
    decoder=SandwichDecoder,
    weights=with_offset({**SANDWICH_WEIGHTS, **QK_NORM_WEIGHTS}, 1.0),
    gguf=GgufFamily(
        "gemma3",
        gguf.NORM_AND_ROPE_KEYS
        | {
            gguf.WINDOW,
            _LOGITS_SOFTCAP,
            gguf.ATTENTION_SCALE,
            _SLIDING_ROPE_BASE,
            gguf.SLIDING_PATTERN,
        },
        _gguf_gemma3,
    ),
)
