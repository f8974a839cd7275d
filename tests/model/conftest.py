"""A fixture of tests that make several engines of one checkpoint."""

from pathlib import Path

import pytest

from pellucid.engine import llm_engine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of one checkpoint on one backend share its weights, which are loaded for the first of them."""
    load_model, loaded = llm_engine.load_model, dict[tuple[str | Path | None, str], LoadedModel]()

    def load(config: EngineConfig, *args: object, **options: object) -> LoadedModel:
        key = config.model, config.backend
        if key not in loaded:
            loaded[key] = load_model(config, *args, **options)
        return loaded[key]

    monkeypatch.setattr(llm_engine, "load_model", load)
