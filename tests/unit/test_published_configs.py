"""Published folders in Hugging Face layout: their facts, or the sentence of refusal, one golden line each."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.config_defaults import config_defaults
from pellucid.models.registry import family_of, find_family, parse_model_config
from support.published_configs import FOLDER, NAMES, facts_or_refusal, published

GOLDEN = FOLDER.with_name("hf.golden.txt")  # UPDATE_PUBLISHED=1 writes it


def golden_lines() -> dict[str, str]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def test_each_folder_has_its_facts_or_its_refusal(tmp_path: Path) -> None:
    lines = {}
    for name in NAMES:
        (tmp_path / name).mkdir()
        lines[name] = facts_or_refusal(published(name).write(tmp_path / name))
    if os.environ.get("UPDATE_PUBLISHED"):
        GOLDEN.write_text("".join(f"{name}\t{line}\n" for name, line in lines.items()))
    assert lines == golden_lines()


def test_most_folders_are_read() -> None:
    lines = golden_lines().values()
    assert len(lines) == 110
    assert sum(not line.startswith("refused: ") for line in lines) >= 90


REFUSED_FOR_A_KEY = ("is_causal", "bits", "quant")  # all others for what their architecture needs


def test_each_refusal_says_what_is_missing() -> None:
    for name, line in golden_lines().items():
        if line.startswith("refused: ") and not any(key in line for key in REFUSED_FOR_A_KEY):
            assert "no family has what it needs: " in line, name


READ = tuple(name for name, line in golden_lines().items() if not line.startswith("refused: "))


def parse(config: dict[str, Any]) -> ModelConfig:
    return parse_model_config(JsonObject(Path("config.json"), config))


def changed(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each key of the text model: its name, the object that holds it, and a copy of config.json around that."""
    for nested in (False, True):
        if nested and not isinstance(config.get("text_config"), dict):
            continue
        for key in config["text_config"] if nested else config:
            copy = {**config}
            holder = copy
            if nested:
                holder = copy["text_config"] = {**config["text_config"]}
            yield key, holder, copy


WRONG = {str: 5, bool: "yes", int: "five", float: [], list: {}, dict: [], type(None): "something"}


@pytest.mark.parametrize("name", READ)
def test_a_key_that_is_missing_or_wrong_is_named_or_stands_for_its_default(name: str) -> None:
    """As transformers: what a missing key stands for is compared with its classes in tests/oracle."""
    config = published(name).config
    facts = parse(config)
    family = family_of(facts.architecture)
    _, text = find_family(JsonObject(Path("config.json"), config))
    named = text.values.get("model_type")
    defaults = config_defaults(named if named in family.model_types else family.model_types[0])
    for key, holder, copy in changed(config):
        value = holder.pop(key)
        missing = parse_or_message(copy)
        assert isinstance(missing, ModelConfig) or key in missing, (key, missing)
        is_text = holder is copy.get("text_config", copy)
        if is_text and key in defaults and isinstance(missing, ModelConfig):
            holder[key] = defaults[key]
            assert parse_or_message(copy) == missing, key
        holder[key] = WRONG[type(value)]
        wrong = parse_or_message(copy)
        assert wrong in (facts, missing) or (isinstance(wrong, str) and key in wrong), (key, wrong)


def parse_or_message(config: dict[str, Any]) -> ModelConfig | str:
    try:
        return parse(config)
    except ValueError as error:
        return str(error)


OF_CODES = re.compile(r"_(blocks|scales)$|(?<=\.weight)\.\w+$|\.(SCB|weight_format)$")


@pytest.mark.parametrize("name", [name for name in READ if published(name).tensors])
def test_each_tensor_has_a_place(name: str) -> None:
    folder = published(name)
    model = parse(folder.config)
    tensors = {pattern.replace("{}", "0") for pattern in folder.tensors}
    names = family_of(model.architecture).hf_names(model, tensors)
    wanted = {
        prefix + source.tensor(kind).replace("{i}", "0").replace("{e}", "0")
        for recipe in names.recipes.values()
        for source in recipe.sources
        for kind in ("weight", "bias")
        for prefix in names.prefixes
    }
    for tensor in tensors:
        whole = OF_CODES.sub("", tensor)
        known = {tensor, whole, f"{whole}.weight"} & wanted
        assert known or names.unused.fullmatch(tensor), tensor
    embedding = names.recipe("embed_tokens").sources[0].tensor("weight")
    assert any(prefix + embedding in tensors for prefix in names.prefixes)
