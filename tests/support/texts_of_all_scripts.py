"""Texts of many scripts, code, white space, emoji and hostile forms, for comparing tokenizers."""

import json
from itertools import chain
from pathlib import Path

_FILE = Path(__file__).with_suffix(".json")
_GROUPS: dict[str, list[str]] = json.loads(_FILE.read_text("utf-8"))

TEXTS = [
    *chain(*_GROUPS.values()),
    " ".join(_GROUPS["sentences"]),
    "\n\n".join(_GROUPS["code"]),
    "".join(_GROUPS["emoji"] + _GROUPS["sentences"][::-1]),
]
