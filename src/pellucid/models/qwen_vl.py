"""The text models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen 2 and 3 with other defaults.

Where Qwen3-VL adds a picture to the inputs of its first layers, text adds nothing.
"""

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models import mixture
from pellucid.models.family import Family, GgufFamily
from pellucid.models.gguf_metadata import LLAMA_KEYS, llama_like_values
from pellucid.models.qwen import read_qwen2, read_qwen3
from pellucid.models.stored_weights import LLAMA_WEIGHTS, QK_NORM_WEIGHTS


def _read_qwen3_vl_moe(config: JsonObject) -> ModelConfig:
    experts = mixture.read_experts(config, normalize=True)
    return mixture.some_sparse(config, read_qwen3(config), experts)


_PICTURE_LAYERS = "n_deepstack_layers"  # to whose inputs pictures add something
_KEYS = LLAMA_KEYS | {_PICTURE_LAYERS}

QWEN2_VL = Family(
    architectures=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    # Of the whole model where the text model has no object of its own.
    model_types=("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"),
    read_config=read_qwen2,
    weights=LLAMA_WEIGHTS,
    gguf=GgufFamily("qwen2vl", _KEYS, llama_like_values),
)

QWEN3_VL = Family(
    architectures=("Qwen3VLForConditionalGeneration",),
    model_types=("qwen3_vl_text",),
    read_config=read_qwen3,
    weights={**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS},
    gguf=GgufFamily("qwen3vl", _KEYS, llama_like_values),
)

QWEN3_VL_MOE = Family(
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    model_types=("qwen3_vl_moe_text",),
    read_config=_read_qwen3_vl_moe,
    weights={**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS, **mixture.EXPERT_WEIGHTS},
    variants=mixture.STACKED_EXPERTS,
    gguf=GgufFamily(
        "qwen3vlmoe",
        _KEYS | mixture.EXPERT_KEYS,
        mixture.gguf_qwen3_moe,
        variants=mixture.JOINED_GATE_UP,
    ),
)
