"""Reads a JSON object from a file that is not trusted."""

import json
from pathlib import Path

from pellucid.facts.json_object import JsonObject
from pellucid.loading.files import read_bytes

# A list takes up to fifty times the memory of its two characters.
_MAX_BYTES = 16 << 20
_MAX_CONTAINERS = 100_000


def read_json_object(path: Path) -> JsonObject:
    """Reads a file that holds one JSON object.

    Raises:
        ValueError: the file is missing, too large, not JSON, or does not hold an object.
        OSError: it cannot be read.
    """
    data = read_bytes(path, _MAX_BYTES)
    num_containers = data.count(b"[") + data.count(b"{")
    if num_containers > _MAX_CONTAINERS:
        raise ValueError(
            f"{path}: has {num_containers} lists and objects: at most {_MAX_CONTAINERS} are allowed"
        )
    try:
        values = json.loads(data)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except ValueError as error:  # JSON's and UTF-8's
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must hold a JSON object, holds {type(values).__name__}")
    return JsonObject(path, values)
