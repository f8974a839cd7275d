"""Converts the tokenizer of a GGUF file to one of the tokenizers library.

Three kinds exist in the families that we run: "gpt2", byte-level BPE, whose way of splitting text into words
has a name of llama.cpp's; "llama", SentencePiece's BPE, which has scores instead of merges; and "gemma4", the
same BPE with merges.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from pellucid.json_object import JsonObject
from pellucid.loading.stored_model import MAX_ADDED_CHARACTERS, StoredTokenizer
from pellucid.parameter_checks import MAX_SHOWN, shown


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# -- how byte-level BPE splits text into words -----------------------------------------------------

_WORDS_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_WORDS_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
# Words may begin with capitals and continue in small letters.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_MARKS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WORDS_TEKKEN = "|".join((*_CASED_WORDS, r"\p{N}", _MARKS_AND_SLASHES, _SPACES))
_WORDS_GPT4O = "|".join(
    (
        *(f"{word}{_CONTRACTIONS}?" for word in _CASED_WORDS),
        r"\p{N}{1,3}",
        _MARKS_AND_SLASHES,
        _SPACES,
    )
)


_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)


@dataclass(frozen=True)
class _Splitting:
    """How the pre-tokenizer with one of llama.cpp's names splits text.

    Args:
        patterns: each cuts what the one before left.
        ignore_merges: a word that is a token is taken whole.
        adds_bos: unless the file says otherwise.
        composes: whether text is brought into Unicode's form NFC first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    composes: bool = False


_GPT2 = _Splitting((_WORDS_GPT2,))
_DIGITS = _Splitting((r"\p{N}", _WORDS_GPT2))
_LLAMA3 = _Splitting((_WORDS_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2 = _Splitting((_WORDS_QWEN2,))

_SPLITTINGS: Mapping[str, _Splitting] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt", "exaone4", "granite-docling"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("glm4", "chatglm-bpe", "dbrx", "smaug-bpe"), _Splitting((_WORDS_LLAMA3,))),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN2),
    **dict.fromkeys(("hunyuan-dense", "deepseek-v3"), _Splitting(_DEEPSEEK3)),
    "qwen2": _Splitting((_WORDS_QWEN2,), composes=True),
    "tekken": _Splitting((_WORDS_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": _Splitting((_WORDS_GPT4O,)),
    "default": _Splitting((r"[\p{P}\$\+<=>\^~\|]+", _WORDS_GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # as the format spells it
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_SPACE = "▁"
# Every split of a token into two parts may be a merge. SentencePiece's tokens have at most 16 characters by
# default.
_MAX_SCORED_CHARACTERS = 256


def read_gguf_tokenizer(metadata: JsonObject) -> StoredTokenizer:
    """The tokenizer and the chat template of a GGUF file.

    Args:
        metadata: of the file.

    Raises:
        ValueError: a key is missing or has a value that we do not support.
    """
    vocabulary = _Vocabulary(metadata)
    kind = metadata.string("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            hf_tokenizer, adds_bos = _byte_level_bpe(metadata, vocabulary)
        elif kind == "llama":
            merges = _scored_merges(metadata, vocabulary)
            hf_tokenizer, adds_bos = _sentencepiece_bpe(metadata, vocabulary, merges, True), True
        elif kind == "gemma4":
            merges = _listed_merges(metadata)
            hf_tokenizer, adds_bos = _sentencepiece_bpe(metadata, vocabulary, merges, False), True
        else:
            raise metadata.error("tokenizer.ggml.model", "supported are gpt2, llama and gemma4")
        hf_tokenizer.add_tokens(vocabulary.added_tokens())
    except Exception as error:  # the library promises no type
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{metadata.path}: not a tokenizer: {str(error)[:MAX_SHOWN]}") from error
    special_tokens = vocabulary.special_tokens()
    hf_tokenizer.post_processor = _post_processor(metadata, hf_tokenizer, special_tokens, adds_bos)
    templates = [
        metadata.string(key) if key in metadata.values else None
        for key in ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
    ]
    return StoredTokenizer(hf_tokenizer, special_tokens, *templates)


class _Vocabulary:
    """Tokens, their types and the ids with a role."""

    def __init__(self, metadata: JsonObject) -> None:
        self._metadata = metadata
        self.tokens = metadata.optional_strings("tokenizer.ggml.tokens") or ()
        if not self.tokens:
            raise metadata.error("tokenizer.ggml.tokens", "must be a list of strings")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if self.ids[token] != i)
            raise ValueError(f"{metadata.path}: tokenizer.ggml.tokens holds {shown(twice)} twice")
        types = self._numbers("tokenizer.ggml.token_type", _TokenType.NORMAL)
        if unknown := set(types).difference(_TokenType):
            raise ValueError(
                f"{metadata.path}: tokenizer.ggml.token_type holds {min(unknown)}: supported are "
                f"{min(_TokenType)} to {max(_TokenType)}"
            )
        self.types = dict(zip(self.tokens, types, strict=True))
        if _TokenType.UNUSED in types:  # rows of the model without a token have a placeholder
            self.ids = {
                token: token_id
                for token, token_id in self.ids.items()
                if self.types[token] != _TokenType.UNUSED
            }

    def scores(self) -> Sequence[float]:
        """One per token; higher ones are merged first."""
        scores = self._numbers("tokenizer.ggml.scores", 0.0)
        if any(map(math.isnan, scores)):
            token_id = next(i for i, score in enumerate(scores) if math.isnan(score))
            raise ValueError(
                f"{self._metadata.path}: tokenizer.ggml.scores holds nan for token {token_id}: "
                "must be numbers"
            )
        return scores

    def _numbers(self, key: str, default: float) -> Sequence[Any]:
        """One number per token."""
        values = self._metadata.values.get(key)
        if values is None:
            return [default] * len(self.tokens)
        is_list = isinstance(values, list) and len(values) == len(self.tokens)
        if not is_list or not set(map(type, values)) <= {int, float}:
            raise ValueError(
                f"{self._metadata.path}: {key}: must hold a number for each of the "
                f"{len(self.tokens)} tokens"
            )
        return list(values)

    def special_tokens(self) -> dict[str, str]:
        """By the names that chat templates use."""
        found = {}
        for name, key in _SPECIAL_TOKENS.items():
            for token_id in self._metadata.token_ids(f"tokenizer.ggml.{key}"):
                if token_id >= len(self.tokens):
                    raise self._metadata.error(
                        f"tokenizer.ggml.{key}", f"there are {len(self.tokens)} tokens"
                    )
                found[name] = self.tokens[token_id]
        return found

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are found in a text before it is split into words."""
        special = (_TokenType.CONTROL, _TokenType.UNKNOWN)
        found = [
            AddedToken(token, normalized=False, special=token_type in special)
            for token, token_type in self.types.items()
            if token_type in (*special, _TokenType.USER_DEFINED)
        ]
        if (length := sum(len(token.content) for token in found)) > MAX_ADDED_CHARACTERS:
            raise ValueError(
                f"{self._metadata.path}: tokenizer.ggml.tokens holds control and user-defined tokens of"
                f" {length} characters: at most {MAX_ADDED_CHARACTERS} are allowed"
            )
        return found


def _byte_level_bpe(metadata: JsonObject, vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    splitting = _SPLITTINGS.get(metadata.string("tokenizer.ggml.pre", "default"))
    if splitting is None:
        raise metadata.error("tokenizer.ggml.pre", f"supported are {', '.join(_SPLITTINGS)}")
    hf_tokenizer = Tokenizer(
        models.BPE(vocabulary.ids, _listed_merges(metadata), ignore_merges=splitting.ignore_merges)
    )
    if splitting.composes:
        hf_tokenizer.normalizer = normalizers.NFC()
    hf_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    hf_tokenizer.decoder = decoders.ByteLevel()
    return hf_tokenizer, splitting.adds_bos


def _listed_merges(metadata: JsonObject) -> list[tuple[str, str]]:
    """Both sides of each merge of the file, the first of which may begin with a space."""
    merges = metadata.optional_strings("tokenizer.ggml.merges")
    if merges is None:
        raise metadata.error("tokenizer.ggml.merges", "must be a list of strings")
    if all(merge.find(" ") == merge.rfind(" ") > 0 for merge in merges):  # the usual form
        return [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    pairs = []
    for merge in merges:
        left, space, right = merge[1:].partition(" ")
        if not space:
            raise ValueError(
                f"{metadata.path}: tokenizer.ggml.merges holds {shown(merge)}: no pair"
            )
        pairs.append((merge[0] + left, right))
    return pairs


def _scored_merges(metadata: JsonObject, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges that the scores of tokens stand for."""
    normal = [
        (token, score)
        for token, score in zip(vocabulary.tokens, vocabulary.scores(), strict=True)
        if vocabulary.types[token] == _TokenType.NORMAL
    ]
    if (longest := max((len(token) for token, _ in normal), default=0)) > _MAX_SCORED_CHARACTERS:
        raise ValueError(
            f"{metadata.path}: tokenizer.ggml.tokens holds a token of {longest} characters: at most "
            f"{_MAX_SCORED_CHARACTERS} are supported where tokens have scores"
        )
    return _merges_from_scores(normal, vocabulary.tokens, vocabulary.ids)


def _sentencepiece_bpe(
    metadata: JsonObject,
    vocabulary: _Vocabulary,
    merges: list[tuple[str, str]],
    adds_space_prefix: bool,
) -> Tokenizer:
    """BPE of characters, with tokens of single bytes for others; spaces are written as another character.

    Args:
        merges: both sides of each, in order.
        adds_space_prefix: whether a text gets a space before it, where the file does not say.
    """
    hf_tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            merges,
            unk_token=vocabulary.special_tokens().get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.boolean("tokenizer.ggml.add_space_prefix", adds_space_prefix):
        hf_tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        hf_tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    else:
        hf_tokenizer.normalizer = replace
        hf_tokenizer.decoder = decoders.Sequence(steps)
    return hf_tokenizer


def _merges_from_scores(
    scored: Iterable[tuple[str, float]], tokens: Sequence[str], ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """The merges that SentencePiece's scores stand for: all splits of each token, the token with the best score
    first.

    The order of the splits is transformers' (convert_slow_tokenizer.py, `generate_merges`).

    Args:
        scored: tokens that merges may end in, with their scores.
        tokens: all tokens by id.
        ids: of tokens that merges may be made of.
    """
    merges = []  # score, ids of the left and the right side: of each side there is one string
    for token, score in scored:
        ways = [
            (score, ids[left], ids[right])
            for i in range(1, len(token))
            if (left := token[:i]) in ids and (right := token[i:]) in ids
        ]
        if len(ways) > 1:
            ways.sort()
        merges += ways
    merges.sort(
        key=lambda merge: (merge[0], len(tokens[merge[1]]), len(tokens[merge[2]])), reverse=True
    )
    return [(tokens[left], tokens[right]) for _, left, right in merges]


def _post_processor(
    metadata: JsonObject, hf_tokenizer: Tokenizer, special_tokens: Mapping[str, str], adds_bos: bool
) -> processors.TemplateProcessing | None:
    """Adds BOS before a text, or EOS after it."""
    adds = {
        "bos_token": metadata.boolean("tokenizer.ggml.add_bos_token", adds_bos),
        "eos_token": metadata.boolean("tokenizer.ggml.add_eos_token", False),
    }
    before, after = (
        special_tokens[name] if wanted and name in special_tokens else None
        for name, wanted in adds.items()
    )
    around = [token for token in (before, after) if token is not None]
    if not around:
        return None
    return processors.TemplateProcessing(
        single=[token for token in (before, "$A", after) if token is not None],
        special_tokens=[
            (token, hf_tokenizer.token_to_id(token)) for token in dict.fromkeys(around)
        ],
    )
