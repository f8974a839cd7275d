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

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# `re` has no intersections of classes: (?!\p{Han}) stands for &&[^\p{Han}].
KIMI_K2 = (
    r"\p{Han}+"
    r"|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*"
    r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+"
    r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffcℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    "ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


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
    ignore_merges: bool = False
    adds_bos: bool = False
    form: str | None = None


DESCRIBED = (
    Described(
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en"
        " jina-v2-code roberta-bpe jais trillion granite-docling exaone4",
        (GPT2,),
    ),
    Described("mpt olmo", (GPT2,), form="NFC"),
    Described(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", (r"\p{N}", GPT2)
    ),
    Described("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    Described("default", (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    Described(
        "chameleon",
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        adds_bos=True,
    ),
    Described("poro-chat bloom gpt3-finnish", (BLOOM,)),
    Described("viking", (BLOOM, r"\p{N}")),
    Described(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        (LLAMA3,),
        ignore_merges=True,
        adds_bos=True,
    ),
    Described("dbrx smaug-bpe glm4 chatglm-bpe", (LLAMA3,)),
    Described("qwen2", (QWEN2,), form="NFC"),
    Described(
        "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", (QWEN2,)
    ),
    Described("qwen35", (QWEN35,), form="NFC"),
    Described(
        "jais-2",
        (
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
                r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
            ),
        ),
    ),
    Described(
        "minicpm5",
        (
            r"\p{N}{1,3}",
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ),
        ignore_merges=True,
    ),
    Described(
        "seed-coder",
        (
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ),
    ),
    Described(
        "bailingmoe bailingmoe2 llada-moe",
        (
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
                r"|\s+(?!\S)|\s+"
            ),
        ),
    ),
    Described("laguna", (r"[^\n]+|[\n]+", QWEN2)),
    Described(
        "ufakzeka",
        (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",),
    ),
    Described(
        "exaone-moe",
        (
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
            ),
        ),
    ),
    Described("gpt-4o llama4 kanana2 talkie minimax-m2", (GPT4O,)),
    Described("granite-embed-multi-97m", (GPT4O,), ignore_merges=True),
    Described("tekken", (TEKKEN,), ignore_merges=True, adds_bos=True),
    Described(
        "youtu",
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"),
        ),
        ignore_merges=True,
    ),
    Described("kimi-k2", (KIMI_K2,)),
    Described("tiny_aya cohere2moe", (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)),
    Described(
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3),
    ),
    Described(
        "spark2_5",
        (
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            (
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
            ),
            r"\p{N}",
        ),
    ),
    Described(
        "afmoe",  # digits by threes from the end of a number, which llama.cpp does in code
        (
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟\u0e40-\u0e7f\u0ec0-\u0effក-៿က-႟ꩠ-ꩿꧠ-꧿가-\ud7afᄀ-ᇿ]+",
            DEEPSEEK3,
        ),
    ),
    Described(
        "deepseek-llm",
        (
            "[\r\n]",
            rf"\s?[{DEEPSEEK_CASED}]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            CHINESE,
            r"\p{N}+",
        ),
    ),
    Described("deepseek-coder", ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE, r"\p{N}")),
    Described("superbpe", (r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
)
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
