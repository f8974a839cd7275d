"""The headers of published GGUF files: the facts that are read, or the sentence of refusal, one golden line each."""

import dataclasses
import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pellucid.facts.model_config import GatedDeltaNetConfig, ModelConfig
from pellucid.loading import gguf_file
from pellucid.loading.gguf_config import read_gguf_config
from pellucid.loading.hf_config import read_model_config
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import plan_weights
from pellucid.models.gguf_metadata import GgufMetadata, with_widths_of_tensors
from support.published import (
    FOLDER,
    Published,
    metadata_of,
    published_names,
    read_published,
    with_keys,
    write_published,
)
from support.published_configs import facts_line
from support.published_configs import published as published_folder

GOLDEN = FOLDER.with_name("gguf.golden.txt")  # UPDATE_PUBLISHED=1 writes it
NAMES = published_names()


def golden_lines() -> dict[str, str]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def line_of(published: Published, folder: Path) -> str:
    """The facts and notes, or the sentence of refusal up to the list of what loads instead."""
    path = write_published(folder / f"{published.name}.gguf", published)
    try:
        model = open_stored_model(path)
    except ValueError as error:
        sentence = str(error).removeprefix(f"{path}: ")
        return f"refused: {re.split('; what loads: |: supported are F32', sentence)[0]}"
    return "; note: ".join((facts_line(model.config), *model.notes))


def test_each_file_has_its_facts_or_its_refusal(tmp_path: Path) -> None:
    lines = {name: line_of(read_published(name), tmp_path) for name in NAMES}
    if os.environ.get("UPDATE_PUBLISHED"):
        GOLDEN.write_text("".join(f"{name}\t{line}\n" for name, line in lines.items()))
    assert lines == golden_lines()


def test_each_architecture_is_read_or_its_need_is_named() -> None:
    """Except for three files of an architecture that is read: a draft, rotated weights, Mamba layers."""
    lines = golden_lines()
    assert len(lines) == 113
    for name, line in lines.items():
        if line.startswith("refused: general.architecture"):
            assert "no family has what it needs: " in line, name


# Files of which all keys are read, whether or not the types of their tensors are.
READ = [
    name
    for name, line in golden_lines().items()
    if not line.startswith("refused: ") or line.startswith("refused: tensor ")
]

# A file -> the folder of the same model, or of one with the same facts.
SAME_MODELS = {
    "gemma-codegemma-7b": "gemma-7b",
    "gemma2-2b-it": "gemma2-2b-it",
    "gemma2-2b-it-ollama": "gemma2-2b-it",
    "gemma3-1b-it": "gemma3-1b",
    "gemma3-270m-llama.cpp": "gemma3-270m-smolify",
    "gemma3-27b-it-q4_0-unsloth": "gemma3-27b-it",
    "gemma3-27b-it-qat": "gemma3-27b-it",
    "gemma4-26b-a4b-it-unsloth": "gemma4-26b-a4b",
    "gemma4-e2b-it-unsloth": "gemma4-e2b-it",
    "gpt-oss-120b-lmstudio": "gptoss-120b",
    "gpt-oss-20b-ggml-org": "gptoss-20b",
    "gptoss-120b-ollama": "gptoss-120b",
    "lfm2-lfm2.5-audio-1.5b-q4_0": "lfm2-1.2b",
    "llama-2-7b": "llama-2-7b-hf",
    "llama-mixtral-dolphin-2.7": "mixtral-dolphin-2.5",
    "mistral3-devstral-small-2-llama.cpp": "ministral3-devstral-small-2-24b",
    "phi3-mini-4k-microsoft": "phi3-mini-4k-slerp",
    "qwen2vl-qwen2.5-vl-7b-ud-q6_k_xl-unsloth": "qwen2.5-vl-7b",
    "qwen35-qwen3.5-27b": "qwen3.5-27b",
    "qwen35-qwen3.5-27b-ollama": "qwen3.5-27b",
    "qwen35-qwen3.5-9b": "qwen3.5-9b-masidy",
    "qwen35moe-35b-ollama-16031": "qwen3.5moe-35b-a3b",
    "qwen35moe-qwen3.5-35b-a3b": "qwen3.5moe-35b-a3b",
    "qwen35moe-qwen3.5-397b-a17b-q8_0": "qwen3.5moe-397b-nvfp4",
    "qwen3moe-qwen3-30b-a3b-q5_k_m-unsloth": "qwen3moe-30b-a3b",
    "qwen3vlmoe-qwen3-vl-30b-a3b-instruct-q8_0-unsloth": "qwen3vl-moe-30b-a3b",
    "smollm3-smollm3-3b-14581": "smollm3-3b",
}


@pytest.mark.parametrize("name", SAME_MODELS)
def test_same_facts_as_config_json(name: str, tmp_path: Path) -> None:
    theirs = read_model_config(published_folder(SAME_MODELS[name]).write(tmp_path))
    layers = [
        # Heads stand in another order, which the facts of a GGUF file say.
        dataclasses.replace(layer, recurrence=dataclasses.replace(layer.recurrence, tiled=True))
        if isinstance(layer.recurrence, GatedDeltaNetConfig)
        else layer
        for layer in theirs.layers
    ]
    ours = facts_of(name)
    # Tokens with a role are the tokenizer's in a GGUF file, and in generation_config.json.
    roles = {"bos_token_id": ours.bos_token_id, "eos_token_ids": ours.eos_token_ids}
    theirs = dataclasses.replace(theirs, layers=tuple(layers), **roles)
    assert rounded(ours) == rounded(theirs)


def rounded(value: Any) -> Any:
    """Numbers with the digits that an f32 has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple):
        return tuple(map(rounded, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            each.name: rounded(getattr(value, each.name)) for each in dataclasses.fields(value)
        }
        return type(value).__name__, fields
    return value


# -- tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in READ if read_published(name).types])
def test_as_many_tensors_are_read_as_the_file_has(name: str) -> None:
    published = read_published(name)
    assert len(published.all_tensors) == sum(published.types.values())


@pytest.mark.parametrize("name", [name for name in READ if read_published(name).tensors])
def test_listed_tensors_have_the_shapes_that_are_read(name: str) -> None:
    """And a listed layer has no others."""
    published = read_published(name)
    listed, tensors = published.tensors, published.all_tensors
    for each, (kind, dims) in listed.items():
        own_kind, shape = tensors[each]
        row = shape[1:] if shape[0] == 1 and len(shape) == 2 else shape  # its axis may be left out
        assert own_kind == kind and tuple(dims[::-1]) in (shape, row), each
    whole = tuple(
        f"blk.{layer}." for layer in range(4) if f"blk.{layer}.attn_norm.weight" in listed
    )
    assert {each for each in tensors if each.startswith(whole)} == {
        each for each in listed if each.startswith(whole)
    }


# -- damage ----------------------------------------------------------------------------------------

OTHER_VALUES: tuple[list[Any], ...] = (
    ["str", "x"],
    ["f32", -1.5],
    ["f32", float("nan")],
    ["bool", True],
    ["i32", -1],
    ["u64", 2**63],
    ["arr[i32,3]", [1, 2, 3]],
    ["arr[str,1]", ["x"]],
    ["arr[u32,0]", []],
)


def most_keys_of_each_architecture() -> list[str]:
    by_length = sorted(READ, key=lambda name: len(read_published(name).kv))
    return sorted({read_published(name).architecture: name for name in by_length}.values())


@functools.cache
def own_metadata(name: str) -> GgufMetadata:
    published = read_published(name)
    return metadata_of(
        published, {each: shape for each, (_, shape) in published.all_tensors.items()}
    )


def facts_of(name: str, published: Published | None = None) -> ModelConfig:
    """The facts of the file, perhaps with other keys."""
    metadata = own_metadata(name)
    if published is not None:
        metadata = with_keys(metadata, published)
    return read_gguf_config(with_widths_of_tensors(metadata)[0])


def facts_or_message(name: str, published: Published) -> ModelConfig | str:
    try:
        return facts_of(name, published)
    except ValueError as error:
        return str(error)


def with_value(published: Published, key: str, value: list[Any] | None) -> Published:
    kv = {each: given for each, given in published.kv.items() if each != key}
    return dataclasses.replace(published, kv=kv if value is None else {**kv, key: value})


@pytest.mark.parametrize("name", most_keys_of_each_architecture())
def test_damage_of_one_key_is_named_or_changes_nothing(name: str) -> None:
    published, facts = read_published(name), facts_of(name)
    for key, given in published.kv.items():
        if not key.startswith(f"{published.stored_architecture}."):
            continue
        for value in [None, *(value for value in OTHER_VALUES if value[0] != given[0])]:
            found = facts_or_message(name, with_value(published, key, value))
            if isinstance(found, str):
                assert key in found
            else:  # nothing reads it, or what is missing has a default
                assert value is None or found == facts, f"{key}={value}"
        if re.search(r"\.(vision|audio|mm)\.|deepstack", key):  # left out under every name
            continue
        renamed = facts_or_message(
            name, with_value(with_value(published, key, None), f"{key}x", given)
        )
        assert isinstance(renamed, str) and key in renamed


# -- files of full size ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["qwen35-qwen3.6-27b-mtp-ud-q4_k_xl-unsloth", "qwen35moe-qwen3.5-35b-a3b"]
)
def test_opening_and_planning_reads_no_vocabulary_and_no_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_published(tmp_path / "whole.gguf", read_published(name), vocabulary=True)
    read: list[str] = []
    strings = gguf_file._Header._strings
    monkeypatch.setattr(
        gguf_file._Header, "_strings", lambda *args: (read.append(args[-1]), strings(*args))[1]
    )
    monkeypatch.setattr(gguf_file.GgufFile, "rows", lambda _, name: read.append(name))
    model = open_stored_model(path)
    weights = plan_weights(model, None, "none")
    assert read == []
    assert weights.total > 12 << 30
    assert path.stat().st_blocks * 512 < 64 << 20  # holes
