"""What transformers' configuration classes say of keys, as it is checked in, compared with the classes."""

import json

import pytest

pytest.importorskip("transformers")

from support.config_defaults import PATH, config_defaults
from support.config_facts import MODEL_TYPES, facts_of, rope_facts
from support.config_facts import PATH as FACTS_PATH

FACTS = json.loads(FACTS_PATH.read_text(encoding="utf-8"))


def test_the_defaults_are_those_of_transformers() -> None:
    assert json.loads(PATH.read_text(encoding="utf-8")) == config_defaults(), (
        "python tests/support/config_defaults.py writes them"
    )


# As an error, a warning of a class would count as a refusal of the value.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_changed_keys_change_what_they_change_in_transformers(model_type: str) -> None:
    assert json.loads(json.dumps(facts_of(model_type))) == FACTS[model_type], (
        "python tests/support/config_facts.py writes them"
    )


def test_rotations_are_those_of_transformers() -> None:
    assert json.loads(json.dumps(rope_facts())) == FACTS["ropes"]
