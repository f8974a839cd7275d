"""Tiny files with the keys, kinds of values and names of tensors of published GGUF files: what the same weights as
safetensors answer."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from safetensors.numpy import load_file, save_file

from pellucid import LLM, SamplingParams
from pellucid.loading.open_model import open_stored_model
from pellucid.models.gguf_dialects import dialect_of
from support.checkpoints import write_checkpoint
from support.gguf_files import GGUF_OVERRIDES, v_head_order, write_gguf
from support.published import Published, read_published, stored_names
from support.published import published_names as names_of_corpus

PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=3)
PROMPTS = ["the quick brown fox", "naïve 你好 <|im_end|> fox"]

# llama.cpp's architecture -> one of `support.checkpoints.FAMILIES`.
FAMILIES = {
    "llama": "llama",
    "gpt-oss": "gpt-oss",
    "mistral3": "ministral3",
    "phi3": "phi3",
    "qwen2vl": "qwen2.5-vl",
    "qwen35": "qwen3.5",
    "qwen35moe": "qwen3.5-moe",
    "qwen3moe": "qwen3-moe",
    "qwen3next": "qwen3-next",
    "qwen3vlmoe": "qwen3-vl-moe",
    **{same: same for same in ("gemma", "gemma2", "gemma3", "gemma4", "glm4", "granite", "lfm2")},
    **{same: same for same in ("qwen2", "qwen3", "smollm3")},
}
# What files do not say, and llama.cpp takes for granted.
HEAD_DIM = {"query_pre_attn_scalar": 16}
OVERRIDES: dict[str, dict[str, Any]] = {"gemma2": HEAD_DIM, "gemma3": HEAD_DIM}
TOKENIZER = tuple(f"tokenizer.ggml.{key}" for key in ("model", "pre", "tokens", "token_type", "merges"))


def family_of(published: Published) -> str:
    if published.architecture == "llama" and published.value("expert_count"):
        return "mixtral"
    if published.architecture == "gemma4" and published.value("expert_count"):
        return "gemma4-moe"
    if published.value("rope.scaling.type") == "yarn" and published.architecture == "llama":
        return "llama-yarn"
    if published.value("rope.scaling.attn_factor") is not None:
        return "phi3-longrope"
    return FAMILIES[published.architecture]


def distinct() -> list[str]:
    """A file of each set of keys and names."""
    found: dict[Any, str] = {}
    for name in names_of_corpus():
        published = read_published(name)
        if published.architecture not in FAMILIES or published.only_listed:
            continue
        if any(key.startswith("prism.") for key in published.kv):
            continue
        kinds = frozenset((key, given[0].split(",")[0]) for key, given in published.kv.items() if not key.startswith("general."))
        found.setdefault((published.stored_architecture, family_of(published), kinds), name)
    return sorted(found.values())


def with_keys_of(published: Published, sizes: dict[str, Any]) -> Callable[[GGUFWriter], None]:
    """Gives a file the keys of `published`, in their order and types, with the tiny model's values."""
    prefix, usual = f"{published.stored_architecture}.", f"{published.architecture}."
    usual_keys = {stored: key for key, stored in dialect_of(published.architecture).keys.items()}

    def edit(writer: GGUFWriter) -> None:
        facts = {key: value.value for key, value in writer.kv_data[0].items()}
        count = facts[f"{usual}block_count"]
        writer.kv_data[0].clear()
        for key in [key for key in facts if key in TOKENIZER or not key.startswith(usual) and key not in published.kv and not key.startswith("general.")]:
            pass
        for key, given in published.kv.items():
            own = key.removeprefix(prefix)
            name = usual + usual_keys.get(own, own) if key.startswith(prefix) else key
            value = facts.get(name, sizes.get(own, given[1] if len(given) > 1 else None))
            if key == "general.architecture":
                value = published.stored_architecture
            if value is None:
                continue
            add(writer, key, given[0], value, count)
        for key in TOKENIZER:
            if key not in writer.kv_data[0] or True:
                value = facts[key]
                kind = "str" if isinstance(value, str) else "arr[str,1]" if isinstance(value[0], str) else "arr[i32,1]"
                add(writer, key, kind, value, count)
        rename(writer, published)

    return edit
