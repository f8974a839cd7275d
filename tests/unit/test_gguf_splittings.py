"""Every splitting of llama.cpp's list, beside patterns as its source and the models' own tokenizer.json state them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pellucid.facts.json_object import JsonObject
from pellucid.loading.gguf_splittings import SPLITTINGS
from pellucid.loading.gguf_tokenizer import read_gguf_tokenizer
from support.splitting_reference import ReferenceSplitter, texts


@dataclass(frozen=True)
class Described:
    """What llama.cpp or the model's own files say of a splitting.

    Args:
        names: that share it.
        patterns: as they are written there, but for what `re` lacks.
        ignore_merges: a word that is a token is taken whole.
        adds_bos: where the file does not say.
        form: Unicode's form that the model's own tokenizer brings text into.
    """

    names: str
    patterns: tuple[str, ...]
    ignore_merges: bool
    adds_bos: bool
    form: str | None


FILE = Path(__file__).parents[1] / "published/splittings.txt"


def described_in(block: str) -> Described:
    """`re` has no intersections of classes: (?!\\p{Han}) stands for &&[^\\p{Han}]."""
    names, *lines = block.splitlines()
    patterns = tuple(line.removeprefix("> ") for line in lines if line.startswith("> "))
    said = set(lines) - {f"> {pattern}" for pattern in patterns}
    form = "NFC" if "NFC" in said else None
    assert said <= {"ignore_merges", "adds_bos", "NFC"}
    return Described(names, patterns, "ignore_merges" in said, "adds_bos" in said, form)


DESCRIBED = [described_in(block) for block in FILE.read_text("utf-8").split("\n\n")]
SEED = 28
# Tokens that no merges make: only a tokenizer that ignores merges finds them.
WHOLE_WORDS = ("Ġthe", "123", "'s", "ĠĠ")


@cache
def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens of bytes and of what often stands side by side, across the borders of words too."""
    trained = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=alphabet, show_progress=False, max_token_length=8
    )
    whole_texts = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.pre_tokenizer = whole_texts
    trained.train_from_iterator(texts(2000, SEED), trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = dict.fromkeys(sorted(alphabet))
    merges = []
    for left, right in model["merges"]:
        if left in tokens and right in tokens and left + right not in WHOLE_WORDS:
            merges.append((left, right))
            tokens[left + right] = None
    tokens |= dict.fromkeys(WHOLE_WORDS)
    return {token: token_id for token_id, token in enumerate(tokens)}, merges


def tokenizer_of(pre: str) -> Any:
    ids, merges = vocabulary()
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(ids),
        "tokenizer.ggml.token_type": [1] * len(ids),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
    }
    return read_gguf_tokenizer(JsonObject(Path("x.gguf"), metadata)).hf_tokenizer


@cache
def ids_of_word(word: str, ignore_merges: bool) -> Sequence[int]:
    ids = vocabulary()[0]
    characters = "".join(_BYTES[byte] for byte in word.encode())
    if ignore_merges and characters in ids:
        return [ids[characters]]
    return [token.id for token in _encoder().tokenize(characters)]


@cache
def _encoder() -> models.BPE:
    return models.BPE(*vocabulary())


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + rank)
    for rank, byte in enumerate(byte for byte in range(0x100) if byte not in _PRINTABLE)
}


@pytest.fixture(scope="module")
def some_texts(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(texts(request.config.getoption("texts"), SEED))


@cache
def described_words(
    patterns: tuple[str, ...], form: str | None, some_texts: tuple[str, ...]
) -> list[list[str]]:
    """The words of each text."""
    composed = [text if form is None else normalize(form, text) for text in some_texts]
    reference = ReferenceSplitter.of(patterns, composed)
    return list(map(reference.words, composed))


@pytest.mark.parametrize("described", DESCRIBED, ids=lambda each: each.names.split()[0])
def test_ids_and_words_are_those_of_the_description(
    described: Described, some_texts: tuple[str, ...]
) -> None:
    tokenizer = tokenizer_of(described.names.split()[0])
    encodings = tokenizer.encode_batch(list(some_texts), add_special_tokens=False)
    words_of_texts = described_words(described.patterns, described.form, some_texts)
    for text, words, encoding in zip(some_texts, words_of_texts, encodings, strict=True):
        ids, numbers = [], []
        for number, word in enumerate(words):
            found = ids_of_word(word, described.ignore_merges)
            ids += found
            numbers += [number] * len(found)
        assert encoding.ids == ids, repr(text)
        assert encoding.word_ids == numbers, repr(text)


def test_every_name_is_described_and_names_share_splittings() -> None:
    assert sorted(name for each in DESCRIBED for name in each.names.split()) == sorted(SPLITTINGS)
    for described in DESCRIBED:
        first, *others = described.names.split()
        assert all(SPLITTINGS[name] == SPLITTINGS[first] for name in others)


@pytest.mark.parametrize("described", DESCRIBED, ids=lambda each: each.names.split()[0])
def test_who_adds_bos(described: Described) -> None:
    for name in described.names.split():
        assert SPLITTINGS[name].adds_bos == described.adds_bos
    encoding = tokenizer_of(described.names.split()[0]).encode("x")
    assert len(encoding.ids) == 1 + described.adds_bos


# By these Ollama's converter (convert/tokenizer.go) tells what stands in a model's own tokenizer.json.
DIGESTS = {
    "llama-bpe": "d98f9631be1e9607a9848c26c1f9eac1aa9fc21ac6ba82a2fc0741af9780a48f",
    "deepseek-llm": "03df5c5863ad70781dcfdef491ead25140f895fe8010964be0daefe27be32b02",
    "deepseek-coder": "21cde974d587f0d54dc8d56b183cc1e6239600172035c68fbd6d4b9f8da0576e",
    "qwen2": "1ff7f41064896984db5d1bb6ff64fa4bc29007d08c1b439e505b7392777a319e",
    "qwen35": "00431aed57e696b747435f734d1e3b9b1bfd931a121fb5cac7129e97c181e9ba",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_patterns_are_those_of_the_models(name: str) -> None:
    patterns = SPLITTINGS[name].patterns
    if name.startswith("deepseek"):
        patterns = patterns[:-1]  # the last one is no pattern there: it takes digits
    assert hashlib.sha256("".join(patterns).encode()).hexdigest() == DIGESTS[name]
