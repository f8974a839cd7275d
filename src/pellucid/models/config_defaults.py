"""What the keys of config.json stand for where they are left out: the defaults of transformers' configuration classes.

Sizes have such defaults, too. Transformers before version 5 wrote only the keys of a nested configuration that
differ from them: Gemma 3's published `text_config` has no vocab_size. A wrong guess is found when a tensor has another
shape. tests/support/config_defaults.py writes config_defaults.json.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

OTHER_NAMES = "other_names"  # of keys, by name


def config_defaults(model_type: str) -> Mapping[str, Any]:
    """Key -> value, of one `model_type` of the registry's families; and under `OTHER_NAMES` another name -> key."""
    return _all_defaults()[model_type]


@cache
def _all_defaults() -> Mapping[str, Mapping[str, Any]]:
    data = Path(__file__).with_name("config_defaults.json").read_bytes()
    defaults: Mapping[str, Mapping[str, Any]] = json.loads(data)
    return defaults
