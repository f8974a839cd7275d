"""Hunyuan (dense): Llama that norms each head's q and k after their rotation."""

from collections.abc import Sequence

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig, RopeConfig
from pellucid.models.config_json import Windows, attention_biases, llama_like
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import LLAMA_KEYS
from pellucid.models.llama import llama_gguf_config
from pellucid.models.rope_config import read_rope
from pellucid.models.stored_weights import LLAMA_WEIGHTS, in_layers, stored


def _read_config(config: JsonObject) -> ModelConfig:
    return llama_like(
        config,
        ropes=_ropes,
        attention={**attention_biases(config), "qk_norm": "head", "norm_after_rope": True},
    )


def _ropes(
    config: JsonObject, head_dim: int, max_position: int, windows: Windows
) -> Sequence[RopeConfig | None]:
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.optional_object(key)
        if rope is None or not rope.values.get("alpha"):
            continue
        # Checkpoints call it dynamic, but it is another base for all lengths.
        if head_dim == 2 or head_dim % 2:  # the base grows by a power of D / (D - 2)
            raise rope.error("alpha", f"needs an even head_dim above 2, not {head_dim}")
        theta = rope.number("rope_theta", config.number("rope_theta"))
        alpha = rope.number("alpha")
        if theta <= 1 or alpha < 1:
            raise rope.error("alpha", f"must be at least 1, with rope_theta={theta} above 1")
        return [RopeConfig(theta * alpha ** (head_dim / (head_dim - 2)), head_dim)] * len(windows)
    return [read_rope(config, head_dim, max_position)] * len(windows)


_QK_NORMS = in_layers(
    {
        "q_norm": stored("self_attn.query_layernorm", "attn_q_norm"),
        "k_norm": stored("self_attn.key_layernorm", "attn_k_norm"),
    }
)

HUNYUAN = Family(
    architectures=("HunYuanDenseV1ForCausalLM",),
    model_types=("hunyuan_v1_dense",),
    read_config=_read_config,
    weights={**LLAMA_WEIGHTS, **_QK_NORMS},
    gguf=GgufFamily("hunyuan-dense", LLAMA_KEYS, llama_gguf_config),
)
