"""gpt-oss: Llama with attention sinks, alternating windows, biases, and experts of a clamped activation.

Checkpoints hold the matrices of all experts of a layer in one tensor [experts, in, out], in which the
columns of gate and up alternate.
"""

from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import gguf_metadata as gguf
from pellucid.models import mixture
from pellucid.models.config_json import Windows, attention_biases, llama_like, mixed_windows
from pellucid.models.family import Family, GgufFamily
from pellucid.models.rope_config import FULL, SLIDING
from pellucid.models.stored_weights import (
    LLAMA_WEIGHTS,
    Alternate,
    Tensor,
    Transposed,
    in_layers,
    stored,
)

_ALPHA, _LIMIT = 1.702, 7.0  # of the activation "clamped_swish"


def _read_config(config: JsonObject) -> ModelConfig:
    for key, only in (("swiglu_alpha", _ALPHA), ("swiglu_limit", _LIMIT)):
        if config.number(key) != only:
            raise config.error(key, f"supported is {only}")
    model = llama_like(
        config,
        windows=_windows,
        attention={**attention_biases(config), "has_sinks": True},
    )
    experts = mixture.read_experts(
        config,
        count_key="num_local_experts",
        width_key="intermediate_size",
        activation="clamped_swish",
        router="softmax_chosen",
        normalize=False,
        router_bias=True,
        expert_bias=True,
    )
    return mixture.all_sparse(model, experts)


def _windows(config: JsonObject, num_layers: int) -> Windows:
    window = config.optional_integer("sliding_window")
    return mixed_windows(
        config, window, [SLIDING if i % 2 == 0 else FULL for i in range(num_layers)]
    )


def _gguf_config(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    # Ollama's first converter left out what is the same for all models of the family.
    if (
        metadata.get(gguf.ROPE_SCALING) is None
        and metadata.get(gguf.ROPE_SCALING_FACTOR) is not None
    ):
        metadata = metadata.with_value(gguf.ROPE_SCALING, "yarn")
    values = gguf.llama_like_values(
        metadata.with_value(gguf.FEED_FORWARD, mixture.gguf_expert_width(metadata))
    )
    return {
        **values,
        **mixture.gguf_experts(metadata),
        "rope_parameters": {**values["rope_parameters"], "truncate": False},
    }


_GATE_UP = "mlp.experts.gate_up_proj"
_WEIGHTS = in_layers(
    {
        "mlp_norm": stored("post_attention_layernorm", "post_attention_norm"),
        "attention_sinks": stored(Tensor("self_attn.sinks"), "attn_sinks"),
        "router": stored("mlp.router", "ffn_gate_inp"),
        "experts.gate_proj": stored(
            Tensor(_GATE_UP, (Transposed(), Alternate(0))), "ffn_gate_exps"
        ),
        "experts.up_proj": stored(Tensor(_GATE_UP, (Transposed(), Alternate(1))), "ffn_up_exps"),
        "experts.down_proj": stored(
            Tensor("mlp.experts.down_proj", (Transposed(),)), "ffn_down_exps"
        ),
    }
)

GPT_OSS = Family(
    architectures=("GptOssForCausalLM",),
    model_types=("gpt_oss",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **_WEIGHTS},
    gguf=GgufFamily(
        "gpt-oss",
        gguf.LLAMA_KEYS | mixture.EXPERT_KEYS | {gguf.WINDOW},
        _gguf_config,
    ),
)
