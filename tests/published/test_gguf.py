"""The headers of published GGUF files: the facts that are read, or the sentence of refusal.

UPDATE_PUBLISHED=1 pytest tests/published/test_gguf.py writes facts.txt again; read the difference before you commit it.
"""

import contextlib
import dataclasses
import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pellucid.loading.gguf_config import read_gguf_config
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.stored_model import StoredModel
from pellucid.model_config import LayerConfig, ModelConfig
from pellucid.models.gguf_metadata import with_widths_of_tensors
from support.published import (
    FOLDER,
    Published,
    full_tensors,
    metadata_of,
    published_names,
    read_published,
    write_published,
)

FACTS = FOLDER.parent / "facts.txt"
NAMES = published_names()


def compact(value: Any) -> str:
    """A value with the fields of its class that differ from their defaults."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, tuple):
        numbers = [compact(item) for item in value]
        shown = numbers if len(numbers) < 9 else [*numbers[:2], f"{len(numbers)} in all"]
        return f"({' '.join(shown)})"
    if not dataclasses.is_dataclass(value):
        return str(value)
    fields = (
        f"{field.name}={compact(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    )
    name = type(value).__name__.removesuffix("Config").removesuffix("Scaling")
    return f"{name}({', '.join(fields)})"


def runs(layers: tuple[LayerConfig, ...], kinds: list[LayerConfig]) -> str:
    """Which layer is of which kind, by letters: "3a b" is three times the first kind, then the second."""
    letters = ["abcdefghijklmnopqrstuvwxyz"[kinds.index(layer)] for layer in layers]
    grouped = [(letter, len(list(group))) for letter, group in itertools.groupby(letters)]
    for period in range(1, len(grouped) // 2 + 1):
        times, rest = divmod(len(grouped), period)
        if not rest and grouped == grouped[:period] * times:
            return f"{times} x ({_shown(grouped[:period])})"
    return _shown(grouped)


def _shown(grouped: list[tuple[str, int]]) -> str:
    return " ".join(f"{count if count > 1 else ''}{letter}" for letter, count in grouped)


def facts_of(model: StoredModel) -> str:
    """One line."""
    config = model.config
    kinds = list(dict.fromkeys(config.layers))
    described = "; ".join(
        f"{letter} {compact(kind)}" for letter, kind in zip("abcdefghijklmnop", kinds, strict=False)
    )
    whole = ", ".join(
        f"{field.name}={compact(getattr(config, field.name))}"
        for field in dataclasses.fields(config)
        if field.name != "layers"
    )
    notes = "".join(f"; note: {note}" for note in model.notes)
    return f"{whole}; {runs(config.layers, kinds)}: {described}{notes}"


def line_of(published: Published, folder: Path) -> str:
    """The facts, or the sentence of refusal as far as the list of what loads instead."""
    path = write_published(folder / f"{published.name}.gguf", published)
    try:
        return facts_of(open_stored_model(path))
    except ValueError as error:
        sentence = str(error).replace(f"{path}: ", "")
        return f"refused: {sentence.split('; what loads: ')[0].split(': supported are F32')[0]}"


@pytest.mark.parametrize("name", NAMES)
def test_facts_or_the_sentence_of_refusal(name: str, tmp_path: Path) -> None:
    expected = dict(line.split(": ", 1) for line in FACTS.read_text().splitlines())
    assert line_of(read_published(name), tmp_path) == expected[name]


def test_every_line_is_of_a_file(tmp_path: Path) -> None:
    if os.environ.get("UPDATE_PUBLISHED") == "1":
        lines = (f"{name}: {line_of(read_published(name), tmp_path)}\n" for name in NAMES)
        FACTS.write_text("".join(lines))
    assert [line.split(": ")[0] for line in FACTS.read_text().splitlines()] == NAMES


# -- tensors ---------------------------------------------------------------------------------------


# Files of which all keys are read, whether or not the types of their tensors are.
READ = [
    line.split(": ")[0]
    for line in FACTS.read_text().splitlines()
    if ": refused: " not in line or ": refused: tensor " in line
]


@pytest.mark.parametrize(
    "name",
    [name for name in READ if read_published(name).types],
)
def test_as_many_tensors_are_read_as_the_file_has(name: str) -> None:
    published = read_published(name)
    tensors = full_tensors(published.name)
    assert len(tensors) == sum(published.types.values())


@pytest.mark.parametrize("name", [name for name in READ if read_published(name).tensors])
def test_listed_tensors_have_the_shapes_that_are_read(name: str) -> None:
    """For each listed layer: the same names, each with its shape."""
    published = read_published(name)
    tensors = full_tensors(published.name)
    for listed, (kind, dims) in published.tensors.items():
        own_kind, shape = tensors[listed]
        row = shape[1:] if shape[0] == 1 and len(shape) == 2 else shape  # its axis may be left out
        assert own_kind == kind and tuple(dims[::-1]) in (shape, row), listed
    whole = [layer for layer in range(4) if f"blk.{layer}.attn_norm.weight" in published.tensors]
    of_layers = {each for each in tensors if each.startswith(tuple(f"blk.{i}." for i in whole))}
    assert of_layers == {
        each for each in published.tensors if each.startswith(tuple(f"blk.{i}." for i in whole))
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
    names = {
        read_published(name).architecture: name
        for name in sorted(READ, key=lambda name: len(read_published(name).kv))
    }
    return sorted(names.values())


def read_facts(published: Published, shapes: dict[str, tuple[int, ...]]) -> ModelConfig:
    metadata, _ = with_widths_of_tensors(metadata_of(published, shapes))
    return read_gguf_config(metadata)


def with_value(published: Published, key: str, value: list[Any] | None) -> Published:
    kv = {each: given for each, given in published.kv.items() if each != key}
    return dataclasses.replace(published, kv=kv if value is None else {**kv, key: value})


@pytest.mark.parametrize("name", most_keys_of_each_architecture())
def test_damage_of_one_key_is_named_or_changes_nothing(name: str) -> None:
    published = read_published(name)
    shapes = {each: shape for each, (_, shape) in full_tensors(published.name).items()}
    facts = read_facts(published, shapes)
    prefix = f"{published.stored_architecture}."
    for key, given in published.kv.items():
        if not key.startswith(prefix):
            continue
        others = [value for value in OTHER_VALUES if value[0] != given[0]]
        for value in [None, *others]:
            damaged = with_value(published, key, value)
            with contextlib.suppress(
                ValueError
            ):  # which names the key; or nothing reads it; or it has a default
                changed = read_facts(damaged, shapes)
                assert value is None or changed == facts, f"{key}={value}"
                continue
            with pytest.raises(ValueError, match=re.escape(key)):
                read_facts(damaged, shapes)
        is_left_out = re.search(r"\.(vision|audio|mm)\.|deepstack", key)
        if not is_left_out:
            renamed = with_value(with_value(published, key, None), f"{key}x", given)
            with pytest.raises(ValueError, match=re.escape(key)):
                read_facts(renamed, shapes)
