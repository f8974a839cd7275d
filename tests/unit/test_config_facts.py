"""config.json with one key changed: the model that transformers makes of it, or a refusal that names the key.

tests/support/config_facts.py says what the golden facts hold, and writes them.
"""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.backends.rope_frequencies import rope_frequencies
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.registry import parse_model_config
from support.golden_files import compare

GOLDEN = Path(__file__).parents[1] / "golden"
FACTS: dict[str, Any] = json.loads((GOLDEN / "config_facts.json").read_text(encoding="utf-8"))
ROPES: list[Any] = FACTS.pop("ropes")
# Some beside the sizes of the bases, and the bounds of multipliers.
PROBES = (None, True, "x", -1, 0, 1e-5, 1e-4, 0.5, 1, 4, 5, 6, 7, 1e4, 10_001.0, 10**13)
# Facts of a text rather than of its logits.
OF_TEXTS = ("bos_token_id", "eos_token_id", "max_position_embeddings")


def read(model_type: str, config: dict[str, Any]) -> ModelConfig | str:
    values = {"model_type": model_type} | config
    try:
        return parse_model_config(JsonObject(Path("config.json"), values))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("model_type", FACTS)
def test_without_any_key_a_model_is_that_of_the_class(model_type: str) -> None:
    empty, resolved = read(model_type, {}), read(model_type, FACTS[model_type]["empty"])
    assert empty == resolved or (isinstance(empty, str) and isinstance(resolved, str))


@pytest.mark.parametrize("model_type", FACTS)
def test_a_changed_key_changes_the_model_as_in_transformers(model_type: str) -> None:
    facts = FACTS[model_type]
    plain = [read(model_type, base) for base in facts["bases"]]
    assert all(isinstance(model, ModelConfig) for model in plain)
    for base, key, value, resolved, changes_answers in facts["cases"]:
        config = facts["bases"][base] | {key: value}
        model = read(model_type, config)
        if isinstance(model, str):
            assert key in model
        else:
            assert model == read(model_type, config | resolved), (key, value)
            assert (model != plain[base]) == (changes_answers or key in OF_TEXTS), (key, value)


@pytest.mark.parametrize(("rope", "frequencies", "factor"), ROPES)
def test_rotations_are_those_of_transformers(
    rope: dict[str, Any], frequencies: list[list[float]], factor: float
) -> None:
    config = {"head_dim": 16, "max_position_embeddings": 128, "rope_parameters": rope}
    model = read("llama", config)
    assert isinstance(model, ModelConfig)
    [rotation] = model.ropes
    for length, theirs in zip((20, 300), frequencies, strict=True):
        ours, our_factor = rope_frequencies(rotation, length)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert our_factor == pytest.approx(factor, rel=1e-12)


@cache
def refused(model_type: str) -> dict[tuple[str, str], str]:
    """Of each key of a family, and of rotations: the values that are refused, and what is allowed in their place."""
    found = defaultdict[tuple[str, str], list[str]](list)

    def probe(config: dict[str, Any], key: str, value: Any, path: str = "") -> None:
        said = read(model_type, config)
        if isinstance(said, str):
            said = said.removeprefix("config.json: ").replace(f"={json.dumps(value)}: ", ": ", 1)
            found[path + key, said.removeprefix(f"{path}{key}: ")].append(json.dumps(value))

    facts = FACTS[model_type]
    base = facts["bases"][-1]
    for key in {*facts["empty"], *base, *(key for _, key, *_ in facts["cases"])}:
        for value in PROBES:
            probe(base | {key: value}, key, value)
    sizes = {"head_dim": 16, "max_position_embeddings": 128}
    for rope, _, _ in ROPES if model_type == "llama" else ():
        for key in rope | {"rope_theta": 1e4, "partial_rotary_factor": 1}:
            for value in PROBES:
                ropes = {"rope_parameters": {"rope_theta": 1e4} | rope | {key: value}}
                probe(sizes | ropes, key, value, "rope_parameters.")
    return {place: " ".join(dict.fromkeys(values)) for place, values in found.items()}


@pytest.mark.parametrize("model_type", FACTS)
def test_values_that_a_family_refuses(model_type: str) -> None:
    golden = (GOLDEN / "config_refusals.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in golden]
    expected = {
        (key, said): values for key, values, said, them in rows if model_type in them.split()
    }
    assert refused(model_type) == expected


def test_values_that_are_refused() -> None:
    families = defaultdict[tuple[str, str, str], list[str]](list)
    for model_type in FACTS:
        for (key, allowed), values in refused(model_type).items():
            families[key, values, allowed].append(model_type)
    lines = ["\t".join([*line, " ".join(them)]) for line, them in families.items()]
    compare(GOLDEN / "config_refusals.txt", sorted(lines))
