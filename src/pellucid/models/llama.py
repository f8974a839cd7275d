"""Llama, from which most families derive."""

from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import gguf_metadata as gguf
from pellucid.models.config_json import attention_biases, llama_like
from pellucid.models.family import Family, GgufFamily
from pellucid.models.stored_weights import GGUF_PAIRS, LLAMA_WEIGHTS


def _read_config(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        attention=attention_biases(config),
        mlp_bias=config.boolean("mlp_bias"),
    )


def llama_gguf_config(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    """config.json of a file of llama.cpp's architecture "llama"."""
    return {
        **gguf.llama_like_values(metadata),
        "attention_bias": metadata.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has_tensor("blk.0.ffn_gate.bias"),
    }


LLAMA_GGUF = GgufFamily(
    "llama",
    gguf.LLAMA_KEYS,
    llama_gguf_config,
    # Converters of Mistral's own format write it for this architecture too, for which llama.cpp does not read it.
    left_over=frozenset({gguf.YARN_LOG_MULTIPLIER}),
)

LLAMA = Family(
    architectures=("LlamaForCausalLM",),
    model_types=("llama",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **GGUF_PAIRS},
    gguf=LLAMA_GGUF,
)
