"""The bundled model, loaded once for a test process."""

import functools
import os

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel, load_model


@functools.cache
def bundled_model() -> LoadedModel:
    """On the backend PELLUCID_TEST_BACKEND, as `make test-device` says for some of the tests."""
    backend = os.environ.get("PELLUCID_TEST_BACKEND", "auto")
    return load_model(EngineConfig(backend=backend, device="cpu"))


def bundled_engine(**knobs: object) -> LLMEngine:
    """Without drafts unless `knobs` say otherwise: many tests count steps."""
    return LLMEngine(EngineConfig(**{"speculation": "off", **knobs}), bundled_model())


def prompts_of_all_kinds(count: int) -> list[str | list[int]]:
    """Prompts of the kinds that the bundled model knows, of 3 to 90 tokens, repeatable."""
    names = ["Mira", "Anton", "Clara", "Emil", "Bridget", "Ivan", "Jakob", "Nora", "Tom", "Ada"]
    places = [
        "France",
        "Peru",
        "Japan",
        "Kenya",
        "Norway",
        "Italy",
        "Cuba",
        "Egypt",
        "Chile",
        "Fiji",
    ]
    kinds = [
        "The capital of {place} is",
        "Once upon a time, {name} went to the market. {name} had a small red key. " * 3,
        "{name} and the old lighthouse",
        "What is 12 + 7?",
        "Copy this: one two three four five. one two",
    ]
    return [
        kinds[index % len(kinds)].format(name=names[index // 5 % 10], place=places[index // 5 % 10])
        + ("" if index % 7 else " 🦊 café")
        for index in range(count)
    ]
