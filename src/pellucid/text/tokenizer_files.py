"""Reads the files of a Hugging Face directory that say how text becomes tokens."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

TOKENIZER_FILE = "tokenizer.json"
MAX_FILE_BYTES = 256 << 20
_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True)
class TokenizerFiles:
    """What a directory says about its tokenizer.

    Args:
        backend: text to ids and back; cuts and pads nothing.
        special_tokens: by the names that chat templates use: "bos_token", "eos_token", ...
        chat_template: its source, None if the model has none.
        tool_chat_template: that for conversations with tools, if it is another one.
    """

    backend: Backend
    special_tokens: dict[str, str]
    chat_template: str | None
    tool_chat_template: str | None


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Reads tokenizer.json and what tokenizer_config.json, special_tokens_map.json,
    generation_config.json, config.json and chat_template.jinja add to it.

    What is put around a text, such as BOS, tokenizer.json alone decides: like transformers 5 we do not
    heed add_bos_token and add_eos_token, which were for directories without it.

    Raises:
        ValueError: a file is missing, cannot be read as what it should be, or contradicts another one.
    """
    backend = _read_backend(directory)
    config = _read_json(directory / "tokenizer_config.json")
    try:
        _add_tokens(backend, config, directory)
        special_tokens = _special_tokens(backend, config, directory)
        templates = _chat_templates(config, directory)
        return TokenizerFiles(
            backend, special_tokens, templates.get("default"), templates.get("tool_use")
        )
    except (AttributeError, KeyError, TypeError) as error:  # an entry of another type
        path = directory / "tokenizer_config.json"
        raise ValueError(f"{path} has an entry of an unexpected form: {error!r}") from error


def _read_bytes(path: Path) -> bytes:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes; at most {MAX_FILE_BYTES} are read"
        )
    return path.read_bytes()


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_bytes(path))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _read_backend(directory: Path) -> Backend:
    path = directory / TOKENIZER_FILE
    if not path.is_file():
        others = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "*.tiktoken")
        found = sorted(file.name for other in others for file in directory.glob(other))
        hint = (
            f"it has only {', '.join(found)}; write tokenizer.json with transformers:"
            " AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
            if found
            else "it has no tokenizer of any kind"
        )
        raise ValueError(f"{directory} has no tokenizer.json: {hint}")
    data = _read_bytes(path)
    try:
        backend = Backend.from_buffer(data)
        declared = _declared_tokens(data)
    except Exception as error:  # the library promises no type
        raise ValueError(f"{path} is not a tokenizer: {error}") from error
    for token in declared:  # the library gives a token with an impossible id another one
        actual = backend.token_to_id(token["content"])
        if actual != token["id"]:
            raise ValueError(
                f"{path}: added token {token['content']!r} has id {token['id']}, which must be {actual}"
            )
    backend.no_truncation()
    backend.no_padding()
    return backend


def _declared_tokens(data: bytes) -> list[dict[str, Any]]:
    """The added tokens of a tokenizer.json that the library has read: all of it would be parsed twice, which
    takes a quarter of a second with a large vocabulary. No other key of this name has a list."""
    text = data.decode()
    for key in re.finditer(r'"added_tokens"\s*:\s*(?=\[)', text):
        declared: list[dict[str, Any]] = json.JSONDecoder().raw_decode(text, key.end())[0]
        return declared
    return []


def _add_tokens(backend: Backend, config: dict[str, Any], directory: Path) -> None:
    """Tokens that fine-tuning added to tokenizer_config.json alone."""
    entries = config.get("added_tokens_decoder", {})
    for token_id, entry in sorted((int(key), entry) for key, entry in entries.items()):
        if backend.token_to_id(entry["content"]) is None:
            backend.add_tokens([_added_token(entry)])
        actual = backend.token_to_id(entry["content"])
        if actual != token_id:
            raise ValueError(
                f"{directory / 'tokenizer_config.json'}: added_tokens_decoder gives"
                f" {entry['content']!r} the id {token_id}, tokenizer.json {actual}"
            )


def _added_token(entry: str | dict[str, Any]) -> AddedToken:
    if isinstance(entry, str):
        return AddedToken(entry, normalized=False, special=True)
    flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(entry["content"], special=bool(entry.get("special")), **flags)


def _special_tokens(backend: Backend, config: dict[str, Any], directory: Path) -> dict[str, str]:
    """The named special tokens; in the backend they become special, if they were not."""
    token_map = _read_json(directory / "special_tokens_map.json")
    found: dict[str, str] = {}
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    for name in _NAMED_TOKENS:
        entry = config.get(f"{name}_token") or token_map.get(f"{name}_token")
        if entry is None:
            content = _token_by_id(backend, name, directory) if name in ("bos", "eos") else None
        else:
            content = entry if isinstance(entry, str) else entry["content"]
        if content is None:
            continue
        if backend.token_to_id(content) is None and name in ("bos", "eos"):
            raise ValueError(f"{directory}: {name}_token {content!r} is no token of tokenizer.json")
        found[f"{name}_token"] = content
        if backend.token_to_id(content) is not None and content not in special:
            backend.add_special_tokens([AddedToken(content, normalized=False, special=True)])
    return found


def _token_by_id(backend: Backend, name: str, directory: Path) -> str | None:
    """A token that only the model's own files name, by its id; the first where they list several."""
    for file in ("generation_config.json", "config.json"):
        token_id = _read_json(directory / file).get(f"{name}_token_id")
        first = token_id[0] if isinstance(token_id, list) and token_id else token_id
        if isinstance(first, int):
            token: str | None = backend.id_to_token(first)
            return token
    return None


def _chat_templates(config: dict[str, Any], directory: Path) -> dict[str, str]:
    """Templates by name: files of their own, or else those of tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        templates = {"default": _read_text(path)}
        tool_path = directory / "additional_chat_templates" / "tool_use.jinja"
        if tool_path.is_file():
            templates["tool_use"] = _read_text(tool_path)
        return templates
    template = config.get("chat_template")
    if template is None:
        return {}
    where = directory / "tokenizer_config.json"
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
