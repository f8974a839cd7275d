"""Known shapes: what the published config.json of well-known models says of their sizes, without weights.

For `pellucid bench --shape` and `pellucid plan --shape`: how fast a model would be, before it is downloaded. A model
whose decoder does not exist here, such as one with multi-head latent attention, has no shape.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.registry import parse_model_config

_FILE = "shapes.json"
_LIKE = "like"  # another shape, from which the keys are taken that a shape does not say itself


def find_shape(name: str) -> ModelConfig:
    """The shape called `name`.

    Raises:
        ValueError: it is not known; the message lists those that are.
    """
    if name not in SHAPES:
        raise ValueError(f"shape={name!r}: known are {', '.join(SHAPES)}")
    return SHAPES[name]


def _read_shapes() -> Mapping[str, ModelConfig]:
    stored = json.loads(files("pellucid").joinpath(_FILE).read_bytes())
    shapes: dict[str, Mapping[str, Any]] = {}
    for name, own in stored.items():
        shapes[name] = {**shapes.get(own.get(_LIKE), {}), **own}
    return {
        name: parse_model_config(
            JsonObject(Path(_FILE), {key: keys[key] for key in keys if key != _LIKE}, name)
        )
        for name, keys in shapes.items()
    }


SHAPES: Mapping[str, ModelConfig] = _read_shapes()
