"""Converts the tokenizer of a GGUF file to one of the tokenizers library.

Three kinds exist in the families that we run: "gpt2", byte-level BPE, whose way of splitting text into words
has a name of llama.cpp's; "llama", SentencePiece's BPE, which has scores instead of merges, unless the file
lists merges too; and "gemma4", the same BPE with merges.
"""

from collections.abc import Callable, Collection, Iterable

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

from pellucid.backends.native import Texts
from pellucid.facts.json_object import JsonObject
from pellucid.inputs.parameter_checks import MAX_SHOWN, shown
from pellucid.loading.gguf_arrays import read_texts
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
from pellucid.loading.listed_merges import ListedMerges
from pellucid.loading.partial_tokenizer import MakeTokenizer, Merges, PartialTokenizer
from pellucid.loading.scored_merges import ScoredMerges
from pellucid.loading.stored_model import MAX_ADDED_CHARACTERS, StoredTokenizer, TextTokenizer

_SPACE = "▁"
_ARCHITECTURE = "general.architecture"
_KEEP_BLANKS_OF_PHI3 = ("<unk>", "<s>", "<|endoftext|>")
# Merging the text of a token takes time that grows with its square. SentencePiece's tokens have at most 16
# characters by default.
_MAX_SCORED_CHARACTERS = 256
# Of fewer tokens the library makes a tokenizer in some hundredths of a second.
MIN_LATER = 1 << 14
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


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
    hf_tokenizer: TextTokenizer
    try:
        if facts.splitting is not None:
            hf_tokenizer = _byte_level_bpe(metadata, vocabulary, facts, facts.splitting)
        else:
            hf_tokenizer = _sentencepiece_bpe(metadata, vocabulary, facts)
    except Exception as error:  # the library promises no type
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{metadata.path}: not a tokenizer: {str(error)[:MAX_SHOWN]}") from error
    return StoredTokenizer(
        hf_tokenizer,
        dict(facts.special_tokens),
        facts.chat_template,
        facts.tool_chat_template,
        num_ids=len(vocabulary.tokens),
    )


def _added_tokens(
    metadata: JsonObject, vocabulary: Vocabulary, facts: GgufTokenizerFacts
) -> dict[int, AddedToken]:
    """Tokens that are found in a text before it is split into words, by id."""
    # No key says so: those of Phi-3 take the blanks after them, as in its own tokenizer.json and in llama.cpp.
    is_phi3 = facts.kind == SCORED and metadata.string(_ARCHITECTURE, "") == "phi3"
    special = set(vocabulary.ids_of_types((TokenType.CONTROL, TokenType.UNKNOWN)))
    texts = {
        token_id: text
        for token_id in sorted(special.union(vocabulary.ids_of_types([TokenType.USER_DEFINED])))
        if (text := vocabulary.tokens[token_id])
    }
    if (length := sum(map(len, texts.values()))) > MAX_ADDED_CHARACTERS:
        raise ValueError(
            f"{metadata.path}: {TOKENS} holds control and user-defined tokens of {length} characters:"
            f" at most {MAX_ADDED_CHARACTERS} are allowed"
        )
    return {
        token_id: AddedToken(
            text,
            normalized=False,
            special=token_id in special,
            rstrip=is_phi3 and text not in _KEEP_BLANKS_OF_PHI3,
        )
        for token_id, text in texts.items()
    }


def _byte_level_bpe(
    metadata: JsonObject, vocabulary: Vocabulary, facts: GgufTokenizerFacts, splitting: Splitting
) -> TextTokenizer:
    composed = normalizers.NFC() if splitting.composes else None
    bytes_as_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns),
            bytes_as_text,
        ]
    )
    post_processor = _post_processor(vocabulary, facts)

    def make(
        ids: dict[str, int], merges: list[tuple[str, str]], added: Iterable[AddedToken]
    ) -> Tokenizer:
        hf_tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=splitting.ignore_merges))
        if composed is not None:
            hf_tokenizer.normalizer = composed
        hf_tokenizer.pre_tokenizer = pre_tokenizer
        hf_tokenizer.decoder = decoders.ByteLevel()
        hf_tokenizer.add_tokens(list(added))
        hf_tokenizer.post_processor = post_processor
        return hf_tokenizer

    def write(text: str) -> str:
        normal = text if composed is None else composed.normalize_str(text)
        return "".join(part for part, _ in bytes_as_text.pre_tokenize_str(normal))

    added = _added_tokens(metadata, vocabulary, facts)
    listed = _listed_merges(metadata)
    merges = vocabulary.merges(listed)
    sizes = vocabulary.sizes(set(TokenType) - {TokenType.UNUSED})
    if merges is None or max(sizes, default=1) > _MAX_SCORED_CHARACTERS:
        return make(vocabulary.ids(), _merge_sides(metadata, listed), added.values())
    of_ids = ListedMerges(merges, len(vocabulary.tokens), sizes)
    return _made_later(vocabulary, of_ids, added, (), make, write, splitting.composes)


def _made_later(
    vocabulary: Vocabulary,
    merges: Merges,
    added: dict[int, AddedToken],
    always: Collection[str],
    make: MakeTokenizer,
    write: Callable[[str], str],
    composes: bool,
) -> TextTokenizer:
    """A tokenizer of few tokens at once, and of many when a text needs it. Arguments are those of
    `PartialTokenizer`."""
    if vocabulary.num_tokens < MIN_LATER:
        ids = vocabulary.ids()
        return make(ids, merges.among(ids), added.values())
    return PartialTokenizer(vocabulary, merges, added, always, make, write, composes)


def _listed_merges(metadata: JsonObject) -> Texts:
    """All merges of the file: two sides, the left one of which may begin with a space, and a space between them."""
    merges = read_texts(metadata, MERGES)
    if merges is None:
        raise metadata.error(MERGES, "must be a list of strings")
    return merges


def _merge_sides(metadata: JsonObject, merges: Texts) -> list[tuple[str, str]]:
    """Both sides of each of them."""
    pairs = []
    for merge in merges.tolist():
        left, space, right = merge[1:].partition(" ")
        if not space:
            raise ValueError(f"{metadata.path}: {MERGES} holds {shown(merge)}: no pair")
        pairs.append((merge[0] + left, right))
    return pairs


def _scored_merges(metadata: JsonObject, vocabulary: Vocabulary) -> ScoredMerges:
    scores = vocabulary.numbers(SCORES, "iuf")
    if (is_nan := np.isnan(scores)).any():
        raise ValueError(
            f"{metadata.path}: {SCORES} holds nan for token {is_nan.argmax()}: must be numbers"
        )
    sizes = vocabulary.sizes([TokenType.NORMAL])
    if (longest := max(sizes, default=1)) > _MAX_SCORED_CHARACTERS:
        raise ValueError(
            f"{metadata.path}: {TOKENS} holds a token of {longest} characters: at most "
            f"{_MAX_SCORED_CHARACTERS} are supported where tokens have scores"
        )
    return ScoredMerges(scores, vocabulary.types == TokenType.NORMAL, sizes)


def _sentencepiece_bpe(
    metadata: JsonObject, vocabulary: Vocabulary, facts: GgufTokenizerFacts
) -> TextTokenizer:
    """BPE of characters, with tokens of single bytes for others; spaces are written as another character."""
    added = _added_tokens(metadata, vocabulary, facts)
    begins_with_space = metadata.boolean(
        f"{PREFIX}add_space_prefix", _begins_with_space(metadata, facts)
    )
    unknown = facts.special_tokens.get("unk_token")
    post_processor = _post_processor(vocabulary, facts)

    def make(
        ids: dict[str, int], merges: list[tuple[str, str]], added: Iterable[AddedToken]
    ) -> Tokenizer:
        hf_tokenizer = Tokenizer(
            models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        replace = normalizers.Replace(" ", _SPACE)
        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        if begins_with_space:
            hf_tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
            steps.append(decoders.Strip(" ", 1, 0))
        else:
            hf_tokenizer.normalizer = replace
        hf_tokenizer.decoder = decoders.Sequence(steps)
        hf_tokenizer.add_tokens(list(added))
        hf_tokenizer.post_processor = post_processor
        return hf_tokenizer

    if facts.kind == MERGED or MERGES in metadata.values:
        return make(
            vocabulary.ids(), _merge_sides(metadata, _listed_merges(metadata)), added.values()
        )
    scored = _scored_merges(metadata, vocabulary)
    always = _BYTES if unknown is None else (*_BYTES, unknown)
    if begins_with_space or _are_merged(scored, vocabulary.ids(always)):
        ids = vocabulary.ids()
        return make(ids, scored.among(ids), added.values())
    write = normalizers.Replace(" ", _SPACE).normalize_str
    return _made_later(vocabulary, scored, added, always, make, write, composes=False)


def _are_merged(scored: ScoredMerges, ids: dict[str, int]) -> bool:
    """Whether merges may make or join some of these tokens, which stand for characters that have none."""
    return any(len(token) == 1 or scored.made[token_id] for token, token_id in ids.items())


def _begins_with_space(metadata: JsonObject, facts: GgufTokenizerFacts) -> bool:
    """Whether a text gets a space before it where the file does not say: as in Llama 2, unlike in Gemma, whose
    files by Google and Ollama leave it out."""
    return facts.kind == SCORED and not metadata.string(_ARCHITECTURE, "").startswith("gemma")


def _post_processor(
    vocabulary: Vocabulary, facts: GgufTokenizerFacts
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
        special_tokens=[(token, vocabulary.find(token)) for token in dict.fromkeys(around)],
    )
