"""The registry: which architectures have a decoder."""

from pathlib import Path

import pytest

from pellucid.models.config_defaults import config_defaults
from pellucid.models.needs import why_not
from pellucid.models.registry import FAMILIES, decoder_class, gguf_architectures

DOCS = Path(__file__).parents[2] / "docs"


def test_each_architecture_belongs_to_one_family():
    names = [name for family in FAMILIES for name in family.architectures]
    assert len(set(names)) == len(names)
    assert all(callable(decoder_class(name)) for name in names)


def test_each_text_model_belongs_to_one_family():
    model_types = [name for family in FAMILIES for name in family.model_types]
    assert len(set(model_types)) == len(model_types)


def test_each_model_type_has_defaults():
    for family in FAMILIES:
        assert all(config_defaults(name) for name in family.model_types), family


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
def test_each_weight_has_its_names(family):
    for weight in family.weights.values():
        assert weight.hf
        assert bool(weight.gguf) or family.gguf is None


def test_an_unknown_architecture_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"architecture='BertModel'.*LlamaForCausalLM"):
        decoder_class("BertModel")


def test_the_documents_list_what_loads():
    models, gguf = ((DOCS / name).read_text(encoding="utf-8") for name in ("models.md", "gguf.md"))
    for family in FAMILIES:
        assert all(f"`{name}`" in models for name in family.architectures), family
    for name in gguf_architectures():
        assert f"`{name}`" in models and f"`{name}`" in gguf, name


def test_an_unknown_name_has_no_invented_need():
    assert why_not("NewForCausalLM", ["X"]) == "no family has this name; what loads: X"
