"""Writes src/pellucid/models/config_defaults.json, from transformers' configuration classes:

python tests/support/config_defaults.py
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import transformers

from pellucid.models.config_defaults import OTHER_NAMES
from pellucid.models.registry import FAMILIES

PATH = Path(__file__).parents[2] / "src" / "pellucid" / "models" / "config_defaults.json"

# Keys that change no answer.
NOTES = {
    *("initializer_range", "use_cache", "pad_token_id", "pretraining_tp", "output_router_logits"),
    *("router_aux_loss_coef", "router_jitter_noise", "attention_dropout", "hidden_dropout"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
    *("summary_first_dropout", "image_token_id", "video_token_id", "vision_start_token_id"),
    *("vision_end_token_id", "classifier_dropout"),
    *(
        "time_step_min",
        "time_step_max",
        "time_step_limit",
    ),  # of Mamba's layers, which no family has
}
BASE_KEYS = {each.name for each in dataclasses.fields(transformers.PreTrainedConfig)}


def config_defaults() -> dict[str, dict[str, Any]]:
    """Model type -> what a key stands for that config.json leaves out. A type that transformers does not know has
    the defaults of its family's first one."""
    defaults = {
        name: _defaults_of(name if name in transformers.CONFIG_MAPPING else family.model_types[0])
        for family in FAMILIES
        for name in family.model_types
    }
    return dict(sorted(defaults.items()))


def _defaults_of(model_type: str) -> dict[str, Any]:
    config = transformers.CONFIG_MAPPING[model_type]().get_text_config()
    defaults = {
        each.name: each.default
        for each in dataclasses.fields(config)
        if each.name not in BASE_KEYS | NOTES and each.default is not dataclasses.MISSING
    }
    # Classes fill in the rotation, and GLM its end tokens, when they are constructed.
    defaults.pop("rope_parameters", None)
    defaults["eos_token_id"] = vars(config).get("eos_token_id")
    defaults.setdefault(
        "tie_word_embeddings", False
    )  # as the whole model's class, where the text's has no head
    if config.attribute_map:
        pairs = (
            pair if pair[1] in defaults else pair[::-1] for pair in config.attribute_map.items()
        )
        defaults[OTHER_NAMES] = dict(pairs)
    return defaults | _rope_defaults(config)


def _rope_defaults(config: transformers.PreTrainedConfig) -> dict[str, Any]:
    """As keys at the top level, where older files have them; the whole object if it is scaled, too."""
    rope = getattr(config, "rope_parameters", None) or {}
    layers = {name: each for name, each in rope.items() if isinstance(each, dict)}
    parts = [layers["full_attention"], layers["sliding_attention"]] if layers else [rope]
    defaults = {
        key: parts[0][key] for key in ("rope_theta", "partial_rotary_factor") if key in parts[0]
    }
    if layers:
        defaults = {"rope_theta": parts[0]["rope_theta"]}
        defaults["rope_local_base_freq"] = parts[1]["rope_theta"]
    if any(part.get("rope_type", "default") != "default" for part in parts):
        # A class may leave the base of its own object to the top level.
        other = type(config)(rope_theta=2.0).rope_parameters
        defaults["rope_parameters"] = {key: rope[key] for key in rope if other[key] == rope[key]}
    return defaults


if __name__ == "__main__":
    lines = (
        f"  {json.dumps(name)}: {json.dumps(defaults)}"
        for name, defaults in config_defaults().items()
    )
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
