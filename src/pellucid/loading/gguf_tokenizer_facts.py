"""What the metadata of a GGUF file says about its tokenizer, without building one."""

from collections.abc import Mapping
from dataclasses import dataclass

from pellucid.facts.json_object import JsonObject
from pellucid.loading import gguf_tokenizer_keys as keys
from pellucid.loading.gguf_splittings import SPLITTINGS, Splitting
from pellucid.loading.gguf_vocabulary import Vocabulary

# Kinds of tokenizers, by llama.cpp's names (`tokenizer.ggml.model`).
BYTE_LEVEL = "gpt2"  # BPE of bytes, within words
SCORED = "llama"  # SentencePiece's BPE, whose merges follow from scores
MERGED = "gemma4"  # the same with merges

# Splittings that stand for the kind MERGED: Ollama writes "llama" for it, with the numbers of rows for scores.
_MERGED_PRES = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
_NO_TOKENIZER = "the file has no tokenizer"
_REFUSED_KINDS = {
    "none": _NO_TOKENIZER,
    "no_vocab": _NO_TOKENIZER,
    "bert": "WordPiece belongs to models that embed text and generate none",
    "t5": "SentencePiece's Unigram belongs to encoders with decoders, which are not supported",
    "rwkv": "it belongs to RWKV, which is not supported",
    "plamo2": "it belongs to PLaMo 2, which is not supported",
    "hybriddna": "it reads DNA, no text",
    "whitespace": "it belongs to models that embed text and generate none",
}
_WAY_OUT = "give the original model's tokenizer: --tokenizer DIR|owner/name"


@dataclass(frozen=True)
class GgufTokenizerFacts:
    """What can be said of a tokenizer before it is built.

    Args:
        kind: how text becomes tokens, by llama.cpp's names: "gpt2", "llama" or "gemma4"; another one that
            the file names where `refusal` is set.
        pre: the name of the splitting into words, None where the file has none.
        refusal: why pellucid builds no tokenizer from this file, in a sentence; None where it does.
        splitting: what `pre` stands for; None where words are not split.
        num_tokens: of the file's list.
        special_tokens: by the names that chat templates use: "bos_token", "eos_token", ...
        end_tokens: the tokens that end an answer, their texts by id.
        adds_bos: whether BOS is put before a text.
        adds_eos: whether EOS is put after a text.
        chat_template: its source, None if the file has none.
        tool_chat_template: the one for conversations with tools, if it is another one.
    """

    kind: str
    pre: str | None
    refusal: str | None
    splitting: Splitting | None
    num_tokens: int
    special_tokens: Mapping[str, str]
    end_tokens: Mapping[int, str]
    adds_bos: bool
    adds_eos: bool
    chat_template: str | None
    tool_chat_template: str | None


def facts_of(metadata: JsonObject, vocabulary: Vocabulary) -> GgufTokenizerFacts:
    """The facts of a file's tokenizer, those that are there even if it is refused.

    Args:
        metadata: of the file.
        vocabulary: what `metadata` says of it.

    Raises:
        ValueError: a key is unknown or missing, or has a value that is not allowed.
    """
    keys.check_keys(metadata)
    model, pre = metadata.string(keys.MODEL), _read_pre(metadata)
    kind = MERGED if pre in _MERGED_PRES and model in (BYTE_LEVEL, SCORED) else model
    splitting = SPLITTINGS.get(pre or "") if kind == BYTE_LEVEL else None
    adds_bos = model != BYTE_LEVEL if splitting is None else splitting.adds_bos
    template, tool_template = keys.read_chat_templates(metadata)
    if (
        template is not None
        and not {keys.EOS_TOKEN_ID, keys.EOS_TOKEN_IDS} & metadata.values.keys()
    ):
        raise metadata.error(
            keys.EOS_TOKEN_ID, "it is required: it ends the answers of a conversation"
        )
    return GgufTokenizerFacts(
        kind,
        pre,
        find_tokenizer_refusal(metadata),
        splitting,
        len(vocabulary.tokens),
        vocabulary.special_tokens(),
        vocabulary.texts_of_ends(keys.read_end_token_ids(metadata)),
        # Files of Gemma 4 that say otherwise are wrong, and llama.cpp corrects them too.
        metadata.boolean(f"{keys.PREFIX}add_bos_token", adds_bos) or MERGED in (model, pre),
        metadata.boolean(f"{keys.PREFIX}add_eos_token", False),
        template,
        tool_template,
    )


def find_tokenizer_refusal(metadata: JsonObject) -> str | None:
    """Why pellucid builds no tokenizer from this file, in a sentence; None where it may.

    Reads no list, so that nobody waits for a large file that is refused.
    """
    try:
        key, reason = _find_refused_key(metadata)
    except ValueError as error:  # the key that it is about has another type
        return str(error)
    return None if reason is None else str(metadata.error(key, f"{reason}: {_WAY_OUT}"))


def _find_refused_key(metadata: JsonObject) -> tuple[str, str | None]:
    """The key that a tokenizer is refused for, and why; no reason where it is not."""
    if keys.MODEL not in metadata.values:
        return keys.MODEL, _NO_TOKENIZER
    model, pre = metadata.string(keys.MODEL), _read_pre(metadata)
    if model not in (BYTE_LEVEL, SCORED, MERGED):
        return keys.MODEL, _REFUSED_KINDS.get(model, "there is no such kind")
    if model == BYTE_LEVEL and pre is None:
        return keys.PRE, "the file does not say how to split text into words"
    if model == BYTE_LEVEL and pre not in SPLITTINGS and pre not in _MERGED_PRES:
        return keys.PRE, "is no known splitting of words"
    if (key := keys.find_change_of_text(metadata)) is not None:
        return key, "is not supported"
    return keys.MODEL, None


def _read_pre(metadata: JsonObject) -> str | None:
    return metadata.string(keys.PRE) if keys.PRE in metadata.values else None
