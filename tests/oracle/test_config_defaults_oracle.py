"""config_defaults.json, compared with transformers' configuration classes."""

import json

import pytest

pytest.importorskip("transformers")

from support.config_defaults import PATH, config_defaults


def test_the_defaults_are_those_of_transformers() -> None:
    assert json.loads(PATH.read_text(encoding="utf-8")) == config_defaults(), (
        "python tests/support/config_defaults.py writes them"
    )
