"""Models as transformers loads them, the text models of larger ones included. Needs the `oracle` extra."""

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)


def load_theirs(checkpoint: Path) -> PreTrainedModel:
    """The model in `checkpoint`, computed in f32 without fused attention."""
    auto_class = _auto_class(AutoConfig.from_pretrained(checkpoint))
    model: PreTrainedModel = auto_class.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    return model


def make_theirs(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with new weights."""
    model: PreTrainedModel = _auto_class(config).from_config(config)
    return model


def _auto_class(
    config: PreTrainedConfig,
) -> type[AutoModelForCausalLM] | type[AutoModelForImageTextToText]:
    is_text = type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if is_text else AutoModelForImageTextToText
