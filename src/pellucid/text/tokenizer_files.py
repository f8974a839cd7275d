"""Reads the tokenizer's files of a Hugging Face directory."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import BPE

from pellucid.facts.json_object import MAX_INTEGER
from pellucid.inputs.parameter_checks import MAX_SHOWN, shown
from pellucid.loading.file_names import TOKENIZER_CONFIG_FILE
from pellucid.loading.files import read_bytes
from pellucid.loading.stored_model import MAX_ADDED_CHARACTERS, StoredTokenizer
from pellucid.text.text_encoder import is_panic
from pellucid.text.tokenizer_texts import (
    added_tokens,
    find_tokenizer_file,
    read_chat_templates,
    read_optional_json,
)

_MAX_FILE_BYTES = 256 << 20
# The library takes 1 KB for a character of a regular expression.
_MAX_REGEX_BYTES = 20_000
# The library keeps the pieces of a unigram model in a tree with a node for each byte that pieces do not
# share, takes up to 340 bytes for a node, and frees a piece by one nested call for each of its bytes: at
# 160,000 bytes the process dies.
_MAX_UNIGRAM_BYTES = 4_000_000
_MAX_UNIGRAM_NODES = 1_000_000
_MAX_PIECE_BYTES = 10_000
_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_tokenizer_files(directory: Path) -> StoredTokenizer:
    """Reads tokenizer.json and what tokenizer_config.json, special_tokens_map.json,
    generation_config.json, config.json and chat_template.jinja add to it.

    What is put around a text, such as BOS, tokenizer.json alone decides: like transformers 5 we do not
    heed add_bos_token and add_eos_token, which were for directories without it.

    Raises:
        ValueError: a file is missing, cannot be read as what it should be, or contradicts another one.
    """
    hf_tokenizer = _read_hf_tokenizer(directory)
    config = read_optional_json(directory / TOKENIZER_CONFIG_FILE)
    try:
        _add_tokens(hf_tokenizer, config, directory)
        special_tokens = _special_tokens(hf_tokenizer, config, directory)
        templates = read_chat_templates(config, directory)
        return StoredTokenizer(
            hf_tokenizer,
            special_tokens,
            templates.get("default"),
            templates.get("tool_use"),
            config.get("response_template"),
        )
    except (AttributeError, KeyError, TypeError) as error:  # an entry of another type
        path = directory / TOKENIZER_CONFIG_FILE
        raise ValueError(f"{path} has an entry of an unexpected form: {shown(error)}") from error


def _read_hf_tokenizer(directory: Path) -> HfTokenizer:
    path = find_tokenizer_file(directory)
    data = read_bytes(path, _MAX_FILE_BYTES)
    declared = _declared_tokens(path, data)
    _check_costs(path, data, declared)
    try:
        hf_tokenizer = HfTokenizer.from_buffer(data)
        hf_tokenizer.no_truncation()
        hf_tokenizer.no_padding()
        if isinstance(hf_tokenizer.model, BPE):
            hf_tokenizer.model.dropout = None  # for training: other ids of the same text each time
        _check_encodes(hf_tokenizer)
    except BaseException as error:  # the library promises no type, and its panics are no Exceptions
        if isinstance(error, Exception) or is_panic(error):
            raise ValueError(f"{path} is not a tokenizer: {str(error)[:MAX_SHOWN]}") from None
        raise
    for token in declared:  # the library gives a token with an impossible id another one
        actual = hf_tokenizer.token_to_id(token["content"])
        if actual != token["id"]:
            raise ValueError(
                f"{path}: added token {shown(token['content'])} has id {token['id']}, which must be {actual}"
            )
    return hf_tokenizer


def _declared_tokens(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The added tokens of tokenizer.json, [] where it has none or is garbled, which the library will say."""
    declared = added_tokens(data)
    well_formed = all(
        isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and isinstance(token.get("id"), int)
        for token in declared
    )
    if not well_formed:
        raise ValueError(f"{path} is not a tokenizer: added_tokens: must have content and an id")
    return declared


def _check_costs(path: Path, data: bytes, declared: list[dict[str, Any]]) -> None:
    """Raises a ValueError for what the library would take gigabytes for."""
    patterns = re.finditer(rb'"Regex"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"', data)
    if (regex_bytes := sum(len(match[1]) for match in patterns)) > _MAX_REGEX_BYTES:
        raise ValueError(
            f"{path}: has regular expressions of {regex_bytes} bytes: at most {_MAX_REGEX_BYTES} are allowed"
        )
    if (num_added := sum(len(token["content"]) for token in declared)) > MAX_ADDED_CHARACTERS:
        raise ValueError(
            f"{path}: has added tokens of {num_added} characters: at most {MAX_ADDED_CHARACTERS} are allowed"
        )
    if re.search(rb'"type"\s*:\s*"Unigram"', data):
        _check_unigram_costs(path, data)
    for match in re.finditer(rb'"precompiled_charsmap"\s*:\s*"([^"]{8})', data):
        try:
            trie_bytes = int.from_bytes(base64.b64decode(match[1])[:4], "little")
        except ValueError:
            continue  # the library will say so
        if trie_bytes > len(data):
            raise ValueError(
                f"{path}: precompiled_charsmap has a trie of {trie_bytes} bytes, the file {len(data)}"
            )


def _check_unigram_costs(path: Path, data: bytes) -> None:
    pieces = re.findall(rb'\[\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*,', data)
    num_bytes = sum(map(len, pieces)) - 2 * len(pieces)  # without quotes
    if num_bytes > _MAX_UNIGRAM_BYTES:
        raise ValueError(
            f"{path}: has a unigram model of {num_bytes} bytes: at most {_MAX_UNIGRAM_BYTES} are allowed"
        )
    longest = max(map(len, pieces), default=2) - 2
    if longest > _MAX_PIECE_BYTES:
        raise ValueError(
            f"{path}: has a piece of {longest} bytes in its unigram model: at most {_MAX_PIECE_BYTES} are allowed"
        )
    if num_bytes <= _MAX_UNIGRAM_NODES:
        return  # each byte has at most one node
    try:
        num_nodes = _max_tree_nodes(_unescaped(pieces))
    except ValueError:
        return  # the library will say so
    if num_nodes > _MAX_UNIGRAM_NODES:
        raise ValueError(
            f"{path}: has a unigram model of {num_nodes} bytes that its pieces do not share: at most"
            f" {_MAX_UNIGRAM_NODES} are read"
        )


def _unescaped(pieces: list[bytes]) -> list[bytes]:
    """The texts of JSON strings, in UTF-8."""
    joined = b",".join(pieces)
    if b"\\" not in joined:
        return [piece[1:-1] for piece in pieces]
    return [text.encode(errors="surrogatepass") for text in json.loads(b"[" + joined + b"]")]


def _max_tree_nodes(texts: list[bytes]) -> int:
    """Nodes of the prefix tree of `texts`, counted as if no texts shared more than 32 bytes."""
    rows = np.sort(np.array(texts, "S32")).view(np.uint8).reshape(-1, 32)
    is_shared = (rows[1:] == rows[:-1]) & (rows[1:] != 0)  # with the text before; 0 fills up rows
    num_shared = np.count_nonzero(np.logical_and.accumulate(is_shared, axis=1))
    return sum(map(len, texts)) - int(num_shared)


def _check_encodes(hf_tokenizer: HfTokenizer) -> None:
    """Raises the panic of a tokenizer that no text can be encoded with."""
    try:
        hf_tokenizer.encode("a 1")
    except Exception:  # no panic: for other texts it may do
        return


def _add_tokens(hf_tokenizer: HfTokenizer, config: dict[str, Any], directory: Path) -> None:
    """Tokens that fine-tuning added to tokenizer_config.json alone."""
    path = directory / TOKENIZER_CONFIG_FILE
    entries = config.get("added_tokens_decoder", {})
    if wrong := [key for key in entries if not (key.isdecimal() and len(key) < 11)]:
        raise ValueError(
            f"{path}: added_tokens_decoder has the key {shown(wrong[0])}: must be a token id"
        )
    ordered = sorted((int(key), entry) for key, entry in entries.items())
    # All at once: with each call the library builds its search for all added tokens anew.
    new = [entry for _, entry in ordered if hf_tokenizer.token_to_id(entry["content"]) is None]
    hf_tokenizer.add_tokens([_added_token(entry) for entry in new])
    for token_id, entry in ordered:
        actual = hf_tokenizer.token_to_id(entry["content"])
        if actual != token_id:
            raise ValueError(
                f"{path}: added_tokens_decoder gives {shown(entry['content'])} the id {token_id},"
                f" tokenizer.json {actual}"
            )


def _added_token(entry: str | dict[str, Any]) -> AddedToken:
    if isinstance(entry, str):
        return AddedToken(entry, normalized=False, special=True)
    flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(entry["content"], special=bool(entry.get("special")), **flags)


def _special_tokens(
    hf_tokenizer: HfTokenizer, config: dict[str, Any], directory: Path
) -> dict[str, str]:
    """The named special tokens; the function marks them as special in `hf_tokenizer`."""
    token_map = read_optional_json(directory / "special_tokens_map.json")
    found: dict[str, str] = {}
    special = {t.content for t in hf_tokenizer.get_added_tokens_decoder().values() if t.special}
    for name in _NAMED_TOKENS:
        entry = config.get(f"{name}_token") or token_map.get(f"{name}_token")
        if entry is None:
            content = (
                _token_by_id(hf_tokenizer, name, directory) if name in ("bos", "eos") else None
            )
        else:
            content = entry if isinstance(entry, str) else entry["content"]
        if content is None:
            continue
        if hf_tokenizer.token_to_id(content) is None and name in ("bos", "eos"):
            raise ValueError(
                f"{directory}: {name}_token {shown(content)} is not a token of tokenizer.json"
            )
        found[f"{name}_token"] = content
        if hf_tokenizer.token_to_id(content) is not None and content not in special:
            hf_tokenizer.add_special_tokens([AddedToken(content, normalized=False, special=True)])
    return found


def _token_by_id(hf_tokenizer: HfTokenizer, name: str, directory: Path) -> str | None:
    """A token that only the model's own files name, by its id; the first where they list several."""
    for file in ("generation_config.json", "config.json"):
        token_id = read_optional_json(directory / file).get(f"{name}_token_id")
        first = token_id[0] if isinstance(token_id, list) and token_id else token_id
        if isinstance(first, int):
            if not 0 <= first <= MAX_INTEGER:
                raise ValueError(
                    f"{directory / file}: {name}_token_id={first}: must be a token id, at least 0"
                )
            token: str | None = hf_tokenizer.id_to_token(first)
            return token
    return None
