"""Short names of models: what each stands for, and which words are none."""

import re

import pytest

from pellucid.facts import formulas
from pellucid.facts.model_names import MODEL_NAMES, KnownModel, close_names, find_short_name
from pellucid.shapes import SHAPES

ROUNDED = 1.5  # names round: qwen3:0.6b has 0.75 billion parameters, olmo2:1b 1.48


@pytest.mark.parametrize("known", MODEL_NAMES.values(), ids=lambda known: known.name)
def test_a_name_is_well_formed(known: KnownModel) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9.-]*:\d+(\.\d+)?[mb]|gemma4:e\db", known.name)
    assert re.fullmatch(r"[\w-]+/[\w.-]+", known.repository)
    assert known.shape is None or known.shape in SHAPES


@pytest.mark.parametrize(
    "known",
    [known for known in MODEL_NAMES.values() if known.shape and known.family != "gemma4"],
    ids=lambda known: known.name,
)
def test_a_shape_has_the_size_that_the_name_says(known: KnownModel) -> None:
    assert known.shape is not None
    shape = SHAPES[known.shape]
    parameters = formulas.matrix_parameters(shape) + formulas.embedding_parameters(shape)
    size = known.name.partition(":")[2]
    said = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert said / ROUNDED < parameters < said * ROUNDED


def test_no_two_names_are_one() -> None:
    assert len({name.replace("-", "").replace(":", "") for name in MODEL_NAMES}) == len(MODEL_NAMES)
    assert len({known.repository for known in MODEL_NAMES.values()}) == len(MODEL_NAMES)
    families = [known.family for known in MODEL_NAMES.values() if known.is_default]
    assert sorted(families) == sorted({known.family for known in MODEL_NAMES.values()})


@pytest.mark.parametrize(
    ("word", "name", "tag"),
    [
        ("qwen3:0.6b", "qwen3:0.6b", None),
        ("Qwen3-0.6B", "qwen3:0.6b", None),
        ("qwen3", "qwen3:8b", None),
        ("qwen3:latest", "qwen3:8b", None),
        ("qwen3:30b-a3b", "qwen3:30b", None),
        ("qwen3:8b-q8_0", "qwen3:8b", "Q8_0"),
        ("llama3.2", "llama3.2:3b", None),
        ("llama-3.2-1b-instruct", "llama3.2:1b", None),
        ("llama3.2:3b-instruct-q4_K_M", "llama3.2:3b", "Q4_K_M"),
        ("gemma3:270m-it", "gemma3:270m", None),
        ("smollm2", "smollm2:1.7b", None),
        ("gpt-oss:20b", "gpt-oss:20b", None),
    ],
)
def test_words_that_mean_a_model(word: str, name: str, tag: str | None) -> None:
    assert find_short_name(word) == (MODEL_NAMES[name], tag)


@pytest.mark.parametrize("word", ["", "hello", "qwen3:7b", "qwen", "q8_0", "owner/qwen3"])
def test_words_that_mean_none(word: str) -> None:
    assert find_short_name(word) is None


def test_names_close_to_a_word() -> None:
    assert close_names("llama3.2:2b") == ["llama3.2:1b", "llama3.2:3b"]
    assert "smollm2:135m" in close_names("smolm2:135m")
    assert close_names("hello") == []
