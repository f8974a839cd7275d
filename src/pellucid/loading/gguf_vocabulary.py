"""What the metadata of a GGUF file says about its tokenizer, without building one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from pellucid.json_object import MAX_INTEGER, JsonObject
from pellucid.loading.gguf_splittings import SPLITTINGS, Splitting
from pellucid.parameter_checks import shown

_PREFIX = "tokenizer.ggml."
MODEL, PRE, TOKENS, TOKEN_TYPE, SCORES, MERGES = (
    f"{_PREFIX}{name}" for name in ("model", "pre", "tokens", "token_type", "scores", "merges")
)
_EOS_TOKEN_ID, _EOS_TOKEN_IDS = f"{_PREFIX}eos_token_id", f"{_PREFIX}eos_token_ids"
_TEMPLATE, _TEMPLATE_NAMES = "tokenizer.chat_template", "tokenizer.chat_templates"
_TOOL_TEMPLATE = f"{_TEMPLATE}.tool_use"


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Kinds of tokenizers, by llama.cpp's names (`tokenizer.ggml.model`).
BYTE_LEVEL = "gpt2"  # BPE of bytes, within words
SCORED = "llama"  # SentencePiece's BPE, whose merges follow from scores
MERGED = "gemma4"  # the same with merges

# Splittings that stand for the kind MERGED: Ollama writes "llama" for it, with the numbers of rows for scores.
_MERGED_PRES = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
_OTHER_KINDS = {
    "bert": "WordPiece belongs to models that embed text and generate none",
    "t5": "SentencePiece's Unigram belongs to encoders with decoders, which are not supported",
    "rwkv": "it belongs to RWKV, which is not supported",
    "plamo2": "it belongs to PLaMo 2, which is not supported",
    "hybriddna": "it reads DNA, no text",
    "whitespace": "it belongs to models that embed text and generate none",
}
_NO_TOKENIZER = ("none", "no_vocab")
_WAY_OUT = "give the original model's tokenizer: --tokenizer DIR|owner/name"

# By the names that chat templates use. Text is encoded without those that may lack.
_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_MAY_LACK = ("seperator", "padding", "cls", "mask")
_ENDS = ("eos", "eot", "eom")
# What writers put where no token has a role: -1, in as many bits as the key has.
_NO_TOKEN = (-1, 2**32 - 1, 2**64 - 1)
_FLAGS = re.compile(r"add_\w+_(token|prefix)|remove_extra_whitespaces|normalizer\.\w+")
_OTHER_ROLES = re.compile(r"(separator|prefix|suffix|middle|eot|eom|fim_[a-z]+)_token_id")
_ID_LISTS = re.compile(r"\w+_token_ids|suppress_tokens")
_READ_ELSEWHERE = ("model", "pre", "tokens", "token_type", "scores", "merges", "token_type_count")


@dataclass(frozen=True)
class GgufTokenizerFacts:
    """What can be said of a tokenizer before it is built.

    Args:
        kind: how text becomes tokens, by llama.cpp's names: "gpt2", "llama" or "gemma4"; another one that
            the file names where `refusal` is set.
        pre: the name of the splitting into words, None where the file has none.
        splitting: what this name stands for; None where words are not split.
        num_tokens: of the file's list.
        special_tokens: by the names that chat templates use: "bos_token", "eos_token", ...
        end_tokens: the tokens that end an answer, their texts by id.
        adds_bos: whether BOS is put before a text.
        adds_eos: whether EOS is put after a text.
        chat_template: its source, None if the file has none.
        tool_chat_template: the one for conversations with tools, if it is another one.
        refusal: why pellucid builds no tokenizer from this file, in a sentence; None where it does.
    """

    kind: str
    pre: str | None
    splitting: Splitting | None
    num_tokens: int
    special_tokens: Mapping[str, str]
    end_tokens: Mapping[int, str]
    adds_bos: bool
    adds_eos: bool
    chat_template: str | None
    tool_chat_template: str | None
    refusal: str | None


def read_gguf_tokenizer_facts(metadata: JsonObject) -> GgufTokenizerFacts:
    """The facts of a file's tokenizer.

    Args:
        metadata: of the file.

    Raises:
        ValueError: a key is unknown or missing, or has a value that is not allowed.
    """
    return tokenizer_facts(metadata, Vocabulary(metadata))


def tokenizer_facts(metadata: JsonObject, vocabulary: "Vocabulary") -> GgufTokenizerFacts:
    """The same where the vocabulary has been read."""
    _check_keys(metadata)
    pre = _read_pre(metadata)
    kind, splitting, refusal = _find_kind(metadata, pre)
    adds_bos = _read_model(metadata) != BYTE_LEVEL if splitting is None else splitting.adds_bos
    adds_bos = metadata.boolean(f"{_PREFIX}add_bos_token", adds_bos)
    template, tool_template = _chat_templates(metadata)
    if vocabulary.tokens and not {_EOS_TOKEN_ID, _EOS_TOKEN_IDS} & metadata.values.keys():
        raise metadata.error(_EOS_TOKEN_ID, "it is required: it ends an answer")
    return GgufTokenizerFacts(
        kind,
        pre,
        splitting,
        len(vocabulary.tokens),
        vocabulary.special_tokens,
        vocabulary.texts_of(read_end_token_ids(metadata)),
        # Files of Gemma 4 that say otherwise are wrong, and llama.cpp corrects them too.
        adds_bos or MERGED in (_read_model(metadata), pre),
        metadata.boolean(f"{_PREFIX}add_eos_token", False),
        template,
        tool_template,
        refusal,
    )


def find_tokenizer_refusal(metadata: JsonObject) -> str | None:
    """Why pellucid builds no tokenizer from this file, as far as its kind and splitting say; None where it may.

    Reads no list of tokens.
    """
    try:
        return _find_kind(metadata, _read_pre(metadata))[2]
    except ValueError as error:
        return str(error)


def read_end_token_ids(metadata: JsonObject) -> tuple[int, ...]:
    """Every token that ends an answer: of text, of a turn, of a message; and Ollama's list of them.

    Raises:
        ValueError: a key has a value that is not allowed.
    """
    found = [_role_id(metadata, f"{_PREFIX}{name}_token_id") for name in _ENDS]
    found += _id_list(metadata, _EOS_TOKEN_IDS)
    return tuple(dict.fromkeys(token_id for token_id in found if token_id is not None))


class Vocabulary:
    """Tokens, their types and the ids with a role.

    Args:
        metadata: of the file.

    Attributes:
        tokens: by id.
        types: by id.

    Raises:
        ValueError: a key is missing or has a value that is not allowed, or two tokens have the same text.
    """

    def __init__(self, metadata: JsonObject) -> None:
        self._metadata = metadata
        self.tokens = metadata.optional_strings(TOKENS) or ()
        self.types: Sequence[int] = ()
        if _read_model(metadata) in _NO_TOKENIZER:
            return
        if not self.tokens:
            raise metadata.error(TOKENS, "must be a list of strings")
        self.types = self.numbers(TOKEN_TYPE, (int,))
        if unknown := set(self.types).difference(TokenType):
            raise ValueError(
                f"{metadata.path}: {TOKEN_TYPE} holds {min(unknown)}: supported are "
                f"{min(TokenType)} to {max(TokenType)}"
            )
        if len(set(self.tokens)) < len(self.tokens):
            assert self.ids  # it checks which texts stand twice

    @cached_property
    def ids(self) -> dict[str, int]:
        """Of all tokens that stand for text.

        Rows of the model without a token have a placeholder or an empty text, perhaps the same.
        """
        ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        unused = TokenType.UNUSED
        if len(ids) == len(self.tokens) and unused not in self.types and "" not in ids:
            return ids
        used = [
            (token, token_id)
            for token_id, token in enumerate(self.tokens)
            if token and self.types[token_id] != unused
        ]
        ids = dict(used)
        if len(ids) < len(used):
            twice = next(token for token, token_id in used if ids[token] != token_id)
            raise ValueError(f"{self._metadata.path}: {TOKENS} holds {shown(twice)} twice")
        return ids

    def numbers(self, key: str, types: tuple[type, ...] = (int, float)) -> Sequence[Any]:
        """One number per token, of one of the types.

        Raises:
            ValueError: it is no such list.
        """
        values: Any = self._metadata.values.get(key)
        is_list = isinstance(values, list) and len(values) == len(self.tokens)
        if not is_list or not set(map(type, values)) <= set(types):
            kind = "number" if float in types else "whole number"
            raise self._metadata.error(
                key, f"must hold a {kind} for each of the {len(self.tokens)} tokens"
            )
        checked: list[Any] = values
        return checked

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """By the names that chat templates use."""
        found = {}
        for name, role in _ROLES.items():
            key = f"{_PREFIX}{role}_token_id"
            token_id = _role_id(self._metadata, key)
            if token_id is None or (role in _MAY_LACK and token_id >= len(self.tokens)):
                continue
            self._check_range(key, token_id)
            found[name] = self.tokens[token_id]
        return found

    def texts_of(self, end_token_ids: Iterable[int]) -> Mapping[int, str]:
        """The texts of the tokens that end an answer, by id."""
        for name in _ENDS:
            key = f"{_PREFIX}{name}_token_id"
            self._check_range(key, _role_id(self._metadata, key))
        for token_id in end_token_ids:
            self._check_range(_EOS_TOKEN_IDS, token_id)
        return {token_id: self.tokens[token_id] for token_id in end_token_ids}

    def _check_range(self, key: str, token_id: int | None) -> None:
        if token_id is not None and token_id >= len(self.tokens):
            raise self._metadata.error(key, f"there are {len(self.tokens)} tokens")


def _read_model(metadata: JsonObject) -> str:
    if MODEL not in metadata.values:
        raise metadata.error(MODEL, f"the file has no tokenizer: {_WAY_OUT}")
    return metadata.string(MODEL)


def _read_pre(metadata: JsonObject) -> str | None:
    return metadata.string(PRE) if PRE in metadata.values else None


def _find_kind(metadata: JsonObject, pre: str | None) -> tuple[str, Splitting | None, str | None]:
    """The kind, how it splits words, and why it is refused."""
    kind = _read_model(metadata)
    if kind in _NO_TOKENIZER:
        return kind, None, _refusal(metadata, MODEL, f"the file has no tokenizer: {_WAY_OUT}")
    if kind in _OTHER_KINDS:
        return kind, None, _refusal(metadata, MODEL, f"{_OTHER_KINDS[kind]}: {_WAY_OUT}")
    if kind in (SCORED, MERGED, BYTE_LEVEL) and pre in _MERGED_PRES:
        return MERGED, None, None
    if kind in (SCORED, MERGED):
        return kind, None, None
    if kind != BYTE_LEVEL:
        return kind, None, _refusal(metadata, MODEL, f"there is no such kind: {_WAY_OUT}")
    if pre is None:
        return (
            kind,
            None,
            _refusal(
                metadata, PRE, f"the file does not say how to split text into words: {_WAY_OUT}"
            ),
        )
    if (splitting := SPLITTINGS.get(pre)) is None:
        return kind, None, _refusal(metadata, PRE, f"is no known splitting of words: {_WAY_OUT}")
    return kind, splitting, None


def _refusal(metadata: JsonObject, key: str, reason: str) -> str:
    return str(metadata.error(key, reason))


def _check_keys(metadata: JsonObject) -> None:
    """Raises a ValueError for a key that is not known, or that has a value of another type."""
    for key in metadata.values:
        name = key.removeprefix(_PREFIX)
        if name == key or name in _READ_ELSEWHERE:
            continue
        if _FLAGS.fullmatch(name):
            metadata.boolean(key, False)
        elif name.removesuffix("_token_id") in _ROLES.values() or _OTHER_ROLES.fullmatch(name):
            _role_id(metadata, key)
        elif _ID_LISTS.fullmatch(name):
            _id_list(metadata, key)
        elif name != "precompiled_charsmap":
            raise metadata.error(key, "is not known: an unknown key may change tokens")
    for name in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if metadata.values.get(f"{_PREFIX}{name}"):
            raise metadata.error(f"{_PREFIX}{name}", f"is not supported: {_WAY_OUT}")


def _role_id(metadata: JsonObject, key: str) -> int | None:
    """A token id, None where no token has the role."""
    if key not in metadata.values or metadata.values[key] in _NO_TOKEN:
        return None
    return metadata.integer(key, minimum=0)


def _id_list(metadata: JsonObject, key: str) -> list[int]:
    values = metadata.values.get(key, [])
    if not isinstance(values, list) or not all(
        type(value) is int and (0 <= value <= MAX_INTEGER or value in _NO_TOKEN) for value in values
    ):
        raise metadata.error(key, "must be a list of token ids")
    return [value for value in values if value not in _NO_TOKEN]


def _chat_templates(metadata: JsonObject) -> tuple[str | None, str | None]:
    """The template, and the one for tools."""
    named = metadata.optional_strings(_TEMPLATE_NAMES) or ()
    keys = [key for key in metadata.values if key.startswith(f"{_TEMPLATE}.")]
    sources = {key: metadata.string(key) for key in (*keys, _TEMPLATE) if key in metadata.values}
    for name in named:
        if f"{_TEMPLATE}.{name}" not in sources and not (
            name == "default" and _TEMPLATE in sources
        ):
            raise metadata.error(_TEMPLATE_NAMES, f"there is no {_TEMPLATE}.{name}")
    default = sources.get(_TEMPLATE, sources.get(f"{_TEMPLATE}.default"))
    return default, sources.get(_TOOL_TEMPLATE)
