"""Granite 3 and 4: Llama whose embeddings, scores, residuals and logits are multiplied by constants.

The multiplier r of a residual, x + r f(norm(x)), needs no op. With x = r u the layer is u + f(norm(x)),
and RMSNorm of r u with epsilon e is RMSNorm of u with e / r^2: the decoder computes u.
"""

from dataclasses import replace
from typing import Any

from pellucid.json_object import JsonObject
from pellucid.model_config import ModelConfig
from pellucid.models.config_json import attention_biases, llama_like
from pellucid.models.family import LLAMA_WEIGHTS, Family, GgufFamily
from pellucid.models.gguf_metadata import ATTENTION_SCALE, GgufMetadata
from pellucid.models.llama import LLAMA_GGUF_KEYS, LlamaDecoder, llama_gguf_config

_MAX_MULTIPLIER = 10_000  # checkpoints have 0.01 to 16
_EMBEDDING_SCALE, _RESIDUAL_SCALE, _LOGIT_SCALE = "embedding_scale", "residual_scale", "logit_scale"


def _read_config(config: JsonObject) -> ModelConfig:
    model = llama_like(
        config,
        max_position=2048,
        attention={
            **attention_biases(config),
            "scale": _multiplier(config, "attention_multiplier"),
        },
        mlp_bias=config.boolean("mlp_bias", False),
    )
    residual = _multiplier(config, "residual_multiplier")
    return replace(
        model,
        embedding_scale=_multiplier(config, "embedding_multiplier") / residual,
        norm_eps=model.norm_eps / residual**2,
        logits_scale=1 / _multiplier(config, "logits_scaling"),
    )


def _multiplier(config: JsonObject, key: str) -> float:
    multiplier = config.number(key, 1.0)
    if not 1 / _MAX_MULTIPLIER <= multiplier <= _MAX_MULTIPLIER:
        raise config.error(key, f"must be from 1/{_MAX_MULTIPLIER} to {_MAX_MULTIPLIER}")
    return multiplier


def _gguf_config(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        **llama_gguf_config(metadata),
        **metadata.given(
            attention_multiplier=ATTENTION_SCALE,
            embedding_multiplier=_EMBEDDING_SCALE,
            residual_multiplier=_RESIDUAL_SCALE,
            logits_scaling=_LOGIT_SCALE,
        ),
    }


GRANITE = Family(
    architectures=("GraniteForCausalLM",),
    model_types=("granite",),
    read_config=_read_config,
    decoder=LlamaDecoder,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily(
        "granite",
        LLAMA_GGUF_KEYS | {ATTENTION_SCALE, _EMBEDDING_SCALE, _RESIDUAL_SCALE, _LOGIT_SCALE},
        _gguf_config,
        interleaved=True,
    ),
)
