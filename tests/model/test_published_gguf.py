"""Tiny files with the keys, types and names of published GGUF files answer as the same weights in safetensors."""

import json
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from pellucid import LLM, SamplingParams
from pellucid.checking.dump import dump_model
from pellucid.inputs.config import EngineConfig
from pellucid.loading.open_model import open_stored_model
from support.checkpoints import write_checkpoint
from support.gguf_files import GGUF_OVERRIDES, order_v_heads_as_llama_cpp, write_gguf
from support.published import (
    Published,
    parse_published,
    published_names,
    read_published,
    with_keys_of,
    write_published,
)

PARAMS = SamplingParams(temperature=0, max_tokens=3, logprobs=3, ignore_eos=True)
PROMPTS = ["the quick brown fox", "naïve 你好 <|im_end|> fox"]

# llama.cpp's architecture -> one of `support.checkpoints.FAMILIES`.
FAMILIES = {
    "mistral3": "ministral3",
    "qwen2vl": "qwen2.5-vl",
    "qwen35": "qwen3.5",
    "qwen35moe": "qwen3.5-moe",
    "qwen3moe": "qwen3-moe",
    "qwen3next": "qwen3-next",
    "qwen3vlmoe": "qwen3-vl-moe",
    **{
        same: same for same in ("gemma", "gemma2", "gemma3", "gemma4", "glm4", "gpt-oss", "granite")
    },
    **{same: same for same in ("lfm2", "llama", "phi3", "qwen2", "qwen3", "smollm3")},
}
SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0}


def family_of(published: Published) -> str:
    """The tiny family of a published file."""
    has_experts = bool(published.value("expert_count"))
    if published.architecture == "llama" and has_experts:
        return "mixtral"
    if published.architecture == "gemma4" and has_experts:
        return "gemma4-moe"
    if published.architecture == "llama" and published.value("rope.scaling.type") == "yarn":
        return "llama-yarn"
    if published.value("rope.scaling.attn_factor") is not None:
        return "phi3-longrope"
    return FAMILIES[published.architecture]


def overrides_of(published: Published) -> dict[str, Any]:
    """What the tiny config.json must say, where the published file says less than llama.cpp's newest converter does,
    or more than the tiny family has."""
    scaling = published.value("rope.scaling.type")
    match published.architecture:
        case "gemma2":  # the scale of scores follows from the size of heads
            return {"query_pre_attn_scalar": 16}
        case "gemma3":  # and every sixth layer sees all tokens
            full = {"rope_theta": 1e6}
            full |= (
                {"rope_type": "default"}
                if scaling is None
                else {"rope_type": "linear", "factor": 8.0}
            )
            ropes = {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
            layer_types = [*[SLIDING] * 5, FULL]
            return {
                "query_pre_attn_scalar": 16,
                "num_hidden_layers": 6,
                "layer_types": layer_types,
                "rope_parameters": ropes,
            }
        case "gemma4" if not isinstance(published.value("feed_forward_length"), list):
            return {"use_double_wide_mlp": False}
        case "phi3" if published.value("attention.sliding_window") is None:
            return {"sliding_window": None}
        case "llama" if scaling == "yarn":
            yarn = {"factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0}
            return {"rope_parameters": {**YARN, **yarn}}
        case "qwen3moe" if scaling == "yarn":
            yarn = {"factor": 4.0, "original_max_position_embeddings": 32_768}
            return {**GGUF_OVERRIDES["qwen3-moe"], "rope_parameters": {**YARN, **yarn}}
    return GGUF_OVERRIDES.get(family_of(published), {})


def distinct_files() -> list[str]:
    """One file for each set of keys, types and names of tensors."""
    found: dict[Hashable, str] = {}
    for name in published_names():
        published = read_published(name)
        if published.architecture not in FAMILIES or not published.is_model:
            continue
        keys = frozenset(
            (key, given[0].split(",")[0])
            for key, given in published.kv.items()
            if not key.startswith(("general.", "split.", "quantize."))
        )
        other_names = frozenset(published.other_names)
        found.setdefault(
            (published.stored_architecture, family_of(published), keys, other_names), name
        )
    return sorted(found.values())


def answers(path: Path) -> list[Any]:
    llm = LLM(str(path), backend="numpy", on_note=lambda _: None)
    outputs = llm.generate(PROMPTS, PARAMS)
    return [
        (
            each.prompt_token_ids,
            each.outputs[0].token_ids,
            each.outputs[0].text,
            each.outputs[0].logprobs,
        )
        for each in outputs
    ]


@pytest.fixture(scope="module")
def answers_of_safetensors() -> dict[tuple[str, str], list[Any]]:
    """By family and overrides, which many files share: their weights are the same."""
    return {}


@pytest.mark.parametrize("name", distinct_files())
def test_same_answers_as_from_safetensors(
    name: str, tmp_path: Path, answers_of_safetensors: dict[tuple[str, str], list[Any]]
) -> None:
    published = read_published(name)
    family, overrides = family_of(published), overrides_of(published)
    write_checkpoint(tmp_path, family, config_overrides=overrides)
    file = write_gguf(tmp_path / "model.gguf", tmp_path, edit=with_keys_of(published, tmp_path))
    if published.architecture in ("qwen35", "qwen35moe"):
        order_v_heads_as_llama_cpp(tmp_path)
    key = family, json.dumps(overrides, sort_keys=True)
    if key not in answers_of_safetensors:
        answers_of_safetensors[key] = answers(tmp_path)
    assert answers(file) == answers_of_safetensors[key]


@pytest.mark.parametrize("family", ["llama3", "gemma4", "qwen3.5-moe"])
def test_a_dump_of_a_file_is_an_entry_of_the_corpus(family: str, tmp_path: Path) -> None:
    overrides = GGUF_OVERRIDES.get(family)
    write_checkpoint(tmp_path, family, config_overrides=overrides)
    file = write_gguf(tmp_path / "model.gguf", tmp_path, matrix_type=GGMLQuantizationType.Q8_0)
    dump = json.loads(json.dumps(dump_model(EngineConfig(model=str(file)))))
    published = parse_published("dump", dump)
    model = open_stored_model(file)
    again = open_stored_model(write_published(tmp_path / "again.gguf", published))
    assert list(again.tensors) == list(model.tensors)
    ropes = [attention.rope for attention in model.config.attentions]
    layers = list(again.config.layers)
    for index, layer in enumerate(layers):  # the numbers of rope factors are made up
        if layer.attention is not None:
            attention = replace(layer.attention, rope=ropes.pop(0))
            layers[index] = replace(layer, attention=attention)
    assert replace(again.config, layers=tuple(layers)) == model.config
