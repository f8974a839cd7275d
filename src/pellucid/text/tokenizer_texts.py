"""What the tokenizer's files of a Hugging Face directory say without a tokenizer: templates and texts of tokens."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pellucid.loading.file_names import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from pellucid.loading.files import open_regular, read_bytes
from pellucid.loading.json_file import read_json_object

_MAX_TEMPLATE_BYTES = 4 << 20
# Added tokens stand near the beginning of tokenizer.json, before the vocabulary.
_BEGINNING_BYTES = 1 << 20


def find_tokenizer_file(directory: Path) -> Path:
    """The path of tokenizer.json.

    Raises:
        ValueError: there is none. Says what to do about the files that are there.
    """
    path = directory / TOKENIZER_FILE
    if not path.exists():
        others = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "*.tiktoken")
        found = sorted(file.name for other in others for file in directory.glob(other))
        hint = (
            f"it has only {', '.join(found)}; write tokenizer.json with transformers:"
            " AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
            if found
            else "it has no tokenizer of any kind"
        )
        raise ValueError(
            f"{directory} has no tokenizer.json: {hint}; or give another one: --tokenizer DIR|owner/name"
        )
    return path


def read_optional_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} if there is no such file. Raises as `read_json_object` does."""
    return dict(read_json_object(path).values) if path.exists() else {}


def read_chat_templates(tokenizer_config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Templates by name: files of their own, or else those of tokenizer_config.json.

    Raises:
        ValueError: a template is no text, or none of several is the default.
    """
    path = directory / "chat_template.jinja"
    if path.exists():
        templates = {"default": _read_text(path)}
        tool_path = directory / "additional_chat_templates" / "tool_use.jinja"
        if tool_path.exists():
            templates["tool_use"] = _read_text(tool_path)
        return templates
    template = tokenizer_config.get("chat_template")
    if template is None:
        return {}
    where = directory / TOKENIZER_CONFIG_FILE
    templates = {"default": template}
    if isinstance(template, list):  # several, by name
        templates = {entry["name"]: entry["template"] for entry in template}
        if "default" not in templates:
            raise ValueError(
                f"{where}: none of the chat templates {sorted(templates)} is named 'default'"
            )
    for name, source in templates.items():
        if not isinstance(source, str):
            raise ValueError(
                f"{where}: chat_template {name!r} must be a string, got {type(source).__name__}"
            )
    return templates


def read_added_tokens(directory: Path) -> dict[int, str]:
    """The texts of added tokens by id, as far as tokenizer_config.json or the beginning of tokenizer.json
    says them. Entries of an unexpected form are left out."""
    config = read_optional_json(directory / TOKENIZER_CONFIG_FILE)
    entries = config.get("added_tokens_decoder")
    found = list(entries.items()) if isinstance(entries, dict) else []
    with open_regular(directory / TOKENIZER_FILE) as file:
        listed = added_tokens(file.read(_BEGINNING_BYTES), "replace")
    found += [(token.get("id"), token) for token in listed if isinstance(token, dict)]
    return {
        int(token_id): token["content"]
        for token_id, token in found
        if str(token_id).isdecimal()
        and isinstance(token, dict)
        and isinstance(token.get("content"), str)
    }


def added_tokens(data: bytes, errors: str = "strict") -> list[Any]:
    """The list `added_tokens` of tokenizer.json, [] if it has none or it is not whole.

    Parsing the file as JSON would take a quarter of a second with a large vocabulary. No other key of this name has
    a list.

    Args:
        data: the file, or its beginning.
        errors: of decoding, as in `bytes.decode`.
    """
    if (key := re.search(rb'"added_tokens"\s*:\s*(?=\[)', data)) is None:
        return []
    try:
        text = data[key.end() :].decode(errors=errors)
        tokens: list[Any] = json.JSONDecoder().raw_decode(text)[0]
    except (RecursionError, ValueError):
        return []
    return tokens


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path, _MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
