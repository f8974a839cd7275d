"""What the headers of a model say, as JSON for a report: without names of people, paths and texts.

The form is that of tests/published/README.md.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pellucid.checking.check_model import check_model
from pellucid.checking.template_variables import template_variables
from pellucid.inputs.config import EngineConfig
from pellucid.loading import file_names
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.gguf_checkpoint import GgufCheckpoint
from pellucid.loading.gguf_types import ForeignType
from pellucid.loading.hub_headers import find_headers
from pellucid.text.tokenizer_texts import (
    read_chat_templates,
    read_optional_json,
)

_CUT = "..."  # stands for what is left out
_FIRST_TOKENS = 12
_MAX_ROLES = 64  # tokens with one role
_MAX_ITEMS = 1024  # of a list: layers
_MAX_CHARACTERS = 64
# Of `general.*` only these say what the file is; the others name people, places and texts.
_GENERAL = re.compile(
    r"general\.(architecture|type|file_type|quantization_version|size_label|alignment|sampling\.\w+)"
)
_TEMPLATE = re.compile(r"tokenizer\.chat_template(\..+)?")
_IMATRIX_TEXTS = re.compile(r"quantize\.imatrix\.(file|dataset)")
_PRIVATE_KEYS = ("_name_or_path", "name_or_path")
_QUOTED = re.compile(r'"([^"]*)(?:"|$)')
_WORD = re.compile(rf"[^/\\@]{{0,{_MAX_CHARACTERS}}}")


def dump_model(config: EngineConfig) -> dict[str, Any]:
    """The headers of the model that `config` names.

    Raises:
        ValueError: a header is damaged, or there is no such model.
        OSError: a file cannot be read, or the hub cannot be reached.
    """
    refusal = check_model(config, None).refusal
    with find_headers(config.model, config.revision) as location:
        path = location.path
        found = _dump_directory(path) if path.is_dir() else _dump_gguf(path)
        note = "" if refusal is None else _quotes_cut(refusal.replace(f"{path.parent}/", ""))
        return {
            "source": None,
            "file": path.name,
            "converter": None,
            **found,
            "partial": False,
            "note": note,
        }


def _quotes_cut(sentence: str) -> str:
    """A sentence without the values that it quotes, where they are paths or texts."""
    return _QUOTED.sub(lambda quoted: f'"{_without_texts(quoted[1])}"', sentence)


# -- GGUF ------------------------------------------------------------------------------------------


def _dump_gguf(path: Path) -> dict[str, Any]:
    checkpoint = GgufCheckpoint(path)
    kinds = {name: checkpoint.info(name).type for name in checkpoint}
    names = {
        name: kind.short_name if isinstance(kind, ForeignType) else kind.name
        for name, kind in kinds.items()
    }
    return {
        "kv": {
            key: _entry(key, checkpoint.value_types[key], checkpoint.metadata)
            for key in checkpoint.metadata
        },
        "first_tokens": (checkpoint.metadata.get("tokenizer.ggml.tokens") or [])[:_FIRST_TOKENS],
        "templates": {
            key: _template_facts(value)
            for key, value in checkpoint.metadata.items()
            if _TEMPLATE.fullmatch(key) and isinstance(value, str)
        },
        "tensors": {
            name: [names[name], list(checkpoint.info(name).shape[::-1])] for name in checkpoint
        },
        "types": dict(Counter(names.values())),
    }


def _entry(key: str, value_type: str, metadata: Mapping[str, Any]) -> list[Any]:
    """Type and value of a key; the type alone where the value may name somebody or is a text."""
    is_private = key.startswith("general.") and not _GENERAL.fullmatch(key)
    if is_private or _TEMPLATE.fullmatch(key) or _IMATRIX_TEXTS.fullmatch(key):
        return [value_type]
    value = metadata[key]
    if isinstance(value, str) and not _WORD.fullmatch(value):
        return [value_type]
    if isinstance(value, list) and key.startswith("tokenizer.") and len(value) > _MAX_ROLES:
        return [value_type]  # as long as the vocabulary
    return [value_type, _without_texts(value)]


def _template_facts(source: str) -> dict[str, Any]:
    return {
        "characters": len(source),
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "variables": template_variables(source),
    }


# -- directories -----------------------------------------------------------------------------------


def _dump_directory(directory: Path) -> dict[str, Any]:
    tokenizer_config = read_optional_json(directory / file_names.TOKENIZER_CONFIG_FILE)
    templates = read_chat_templates(tokenizer_config, directory)
    checkpoint = Checkpoint(directory) if file_names.has_weights(directory) else None
    infos = {} if checkpoint is None else {name: checkpoint.info(name) for name in checkpoint}
    without_template = {k: v for k, v in tokenizer_config.items() if k != "chat_template"}
    return {
        "config": _without_texts(read_optional_json(directory / file_names.CONFIG_FILE)),
        "generation_config": _without_texts(
            read_optional_json(directory / file_names.GENERATION_CONFIG_FILE)
        ),
        "tokenizer_config": _without_texts(without_template),
        "templates": {name: _template_facts(source) for name, source in templates.items()},
        "tensors": {name: [info.dtype, list(info.shape)] for name, info in infos.items()},
        "types": dict(Counter(info.dtype for info in infos.values())),
    }


def _without_texts(value: Any) -> Any:
    """JSON in which paths, names of repositories and texts are cut."""
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else _CUT
    if isinstance(value, list):
        kept = [_without_texts(item) for item in value[:_MAX_ITEMS]]
        return kept if len(kept) == len(value) else [*kept, _CUT]
    if isinstance(value, dict):
        entries = list(value.items())[:_MAX_ITEMS]
        return {key: _without_texts(item) for key, item in entries if key not in _PRIVATE_KEYS}
    return value
