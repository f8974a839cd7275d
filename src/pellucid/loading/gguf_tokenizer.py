"""Converts the tokenizer of a GGUF file to one of the tokenizers library.

Three kinds exist in the families that we run: "gpt2", byte-level BPE, whose way of splitting text into words
has a name of llama.cpp's; "llama", SentencePiece's BPE, which has scores instead of merges, unless the file
lists merges too; and "gemma4", the same BPE with merges.
"""

import numpy as np
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

from pellucid.facts.json_object import JsonObject
from pellucid.inputs.parameter_checks import MAX_SHOWN, shown
from pellucid.loading.gguf_splittings import Splitting
from pellucid.loading.gguf_tokenizer_facts import (
    MERGED,
    SCORED,
    GgufTokenizerFacts,
    facts_of,
    find_tokenizer_refusal,
)
from pellucid.loading.gguf_tokenizer_keys import MERGES, PREFIX, SCORES, TOKENS
from pellucid.loading.gguf_vocabulary import TokenType, Vocabulary
from pellucid.loading.kept_merges import kept_merges
from pellucid.loading.stored_model import MAX_ADDED_CHARACTERS, StoredTokenizer

_SPACE = "▁"
_ARCHITECTURE = "general.architecture"
_KEEP_BLANKS_OF_PHI3 = ("<unk>", "<s>", "<|endoftext|>")
# Merging the text of a token takes time that grows with its square. SentencePiece's tokens have at most 16
# characters by default.
_MAX_SCORED_CHARACTERS = 256


def read_gguf_tokenizer(metadata: JsonObject) -> StoredTokenizer:
    """The tokenizer and the chat template of a GGUF file.

    Args:
        metadata: of the file.

    Raises:
        ValueError: a key is missing or has a value that we do not support.
    """
    if (refusal := find_tokenizer_refusal(metadata)) is not None:
        raise ValueError(refusal)
    vocabulary = Vocabulary(metadata)
    facts = facts_of(metadata, vocabulary)
    try:
        if facts.splitting is not None:
            hf_tokenizer = _byte_level_bpe(metadata, vocabulary, facts.splitting)
        else:
            hf_tokenizer = _sentencepiece_bpe(metadata, vocabulary, facts)
        hf_tokenizer.add_tokens(_added_tokens(metadata, vocabulary, facts))
    except Exception as error:  # the library promises no type
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{metadata.path}: not a tokenizer: {str(error)[:MAX_SHOWN]}") from error
    hf_tokenizer.post_processor = _post_processor(hf_tokenizer, facts)
    return StoredTokenizer(
        hf_tokenizer,
        dict(facts.special_tokens),
        facts.chat_template,
        facts.tool_chat_template,
        num_ids=len(vocabulary.tokens),
    )


def _added_tokens(
    metadata: JsonObject, vocabulary: Vocabulary, facts: GgufTokenizerFacts
) -> list[AddedToken]:
    """Tokens that are found in a text before it is split into words."""
    # No key says so: those of Phi-3 take the blanks after them, as in its own tokenizer.json and in llama.cpp.
    is_phi3 = facts.kind == SCORED and metadata.string(_ARCHITECTURE, "") == "phi3"
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    added = {*special, TokenType.USER_DEFINED}
    found = [
        AddedToken(
            token,
            normalized=False,
            special=token_type in special,
            rstrip=is_phi3 and token not in _KEEP_BLANKS_OF_PHI3,
        )
        for token, token_type in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if token_type in added and token
    ]
    if (length := sum(len(token.content) for token in found)) > MAX_ADDED_CHARACTERS:
        raise ValueError(
            f"{metadata.path}: {TOKENS} holds control and user-defined tokens of {length} characters:"
            f" at most {MAX_ADDED_CHARACTERS} are allowed"
        )
    return found


def _byte_level_bpe(
    metadata: JsonObject, vocabulary: Vocabulary, splitting: Splitting
) -> Tokenizer:
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
    return hf_tokenizer


def _listed_merges(metadata: JsonObject) -> list[tuple[str, str]]:
    """Both sides of each merge of the file, the first of which may begin with a space."""
    merges = metadata.optional_strings(MERGES)
    if merges is None:
        raise metadata.error(MERGES, "must be a list of strings")
    if all(merge.find(" ") == merge.rfind(" ") > 0 for merge in merges):  # the usual form
        return [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    pairs = []
    for merge in merges:
        left, space, right = merge[1:].partition(" ")
        if not space:
            raise ValueError(f"{metadata.path}: {MERGES} holds {shown(merge)}: no pair")
        pairs.append((merge[0] + left, right))
    return pairs


def _scored_merges(metadata: JsonObject, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges that the scores of tokens stand for."""
    scores = np.array(vocabulary.numbers(SCORES), np.float64)
    if (is_nan := np.isnan(scores)).any():
        raise ValueError(
            f"{metadata.path}: {SCORES} holds nan for token {is_nan.argmax()}: must be numbers"
        )
    tokens = list(vocabulary.ids)
    token_ids = np.fromiter(vocabulary.ids.values(), np.int64, len(tokens))
    made = np.array(vocabulary.types)[token_ids] == TokenType.NORMAL
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    if (longest := (lengths * made).max(initial=0)) > _MAX_SCORED_CHARACTERS:
        raise ValueError(
            f"{metadata.path}: {TOKENS} holds a token of {longest} characters: at most "
            f"{_MAX_SCORED_CHARACTERS} are supported where tokens have scores"
        )
    left, right = kept_merges(tokens, scores[token_ids], made).T.tolist()
    return list(zip(map(tokens.__getitem__, left), map(tokens.__getitem__, right), strict=True))


def _sentencepiece_bpe(
    metadata: JsonObject, vocabulary: Vocabulary, facts: GgufTokenizerFacts
) -> Tokenizer:
    """BPE of characters, with tokens of single bytes for others; spaces are written as another character."""
    has_merges = facts.kind == MERGED or MERGES in metadata.values
    hf_tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            _listed_merges(metadata) if has_merges else _scored_merges(metadata, vocabulary),
            unk_token=facts.special_tokens.get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.boolean(f"{PREFIX}add_space_prefix", _begins_with_space(metadata, facts)):
        hf_tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        hf_tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    else:
        hf_tokenizer.normalizer = replace
        hf_tokenizer.decoder = decoders.Sequence(steps)
    return hf_tokenizer


def _begins_with_space(metadata: JsonObject, facts: GgufTokenizerFacts) -> bool:
    """Whether a text gets a space before it where the file does not say: as in Llama 2, unlike in Gemma, whose
    files by Google and Ollama leave it out."""
    return facts.kind == SCORED and not metadata.string(_ARCHITECTURE, "").startswith("gemma")


def _post_processor(
    hf_tokenizer: Tokenizer, facts: GgufTokenizerFacts
) -> processors.TemplateProcessing | None:
    """Adds BOS before a text, or EOS after it."""
    before, after = (
        facts.special_tokens.get(name) if wanted else None
        for name, wanted in (("bos_token", facts.adds_bos), ("eos_token", facts.adds_eos))
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
