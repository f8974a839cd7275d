"""Tokenizers out of GGUF metadata: the same ids and bytes as the tokenizers they were made from."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import TokenType
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from pellucid.facts.json_object import JsonObject
from pellucid.loading.gguf_tokenizer import read_gguf_tokenizer
from pellucid.loading.gguf_tokenizer_facts import (
    GgufTokenizerFacts,
    facts_of,
    find_tokenizer_refusal,
)
from pellucid.loading.gguf_vocabulary import Vocabulary
from pellucid.text.tokenizer import Tokenizer as OurTokenizer
from support.refusals import check_refusals
from support.tokenizer_kinds import KINDS

TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        "the quick brown fox, isn't it? Yes. It is!",
        "    indented    text and 1234567 numbers\n\n\tx",
        "naïve café – 你好世界, мир שלום e\u0301",
        "HelloWorld camelCase/path//x\r\n  'S it'LL we've",
        "<|begin|>the<think>x</think>é è</s>",
    ]
)


def metadata_of(backend: Backend, kind: str, **others: Any) -> dict[str, Any]:
    """What a converter writes for a tokenizer of the library."""
    model = json.loads(backend.to_str())
    added = {token["id"]: token for token in model["added_tokens"]}
    tokens = dict(sorted((token_id, token) for token, token_id in backend.get_vocab().items()))
    types = []
    for token_id, token in tokens.items():
        if token_id in added:
            special = added[token_id]["special"]
            types.append(TokenType.CONTROL if special else TokenType.USER_DEFINED)
        elif kind in ("llama", "gemma4") and token.startswith("<0x"):
            types.append(TokenType.BYTE)
        else:
            types.append(TokenType.NORMAL)
    return {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": list(tokens.values()),
        "tokenizer.ggml.token_type": list(map(int, types)),
        **{f"tokenizer.ggml.{key}": value for key, value in others.items()},
    }


def read(metadata: dict[str, Any]) -> Any:
    return read_gguf_tokenizer(JsonObject(Path("x.gguf"), metadata))


def facts(metadata: dict[str, Any]) -> GgufTokenizerFacts:
    values = JsonObject(Path("x.gguf"), metadata)
    return facts_of(values, Vocabulary(values))


# -- byte-level BPE --------------------------------------------------------------------------------

BYTE_LEVEL = KINDS["byte_level_bpe"]()


def byte_level_metadata(pre: str, **others: Any) -> dict[str, Any]:
    merges = json.loads(BYTE_LEVEL.to_str())["model"]["merges"]
    return metadata_of(
        BYTE_LEVEL,
        "gpt2",
        pre=pre,
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        bos_token_id=0,
        eos_token_id=1,
        **others,
    )


GPT2 = read(byte_level_metadata("gpt-2", add_bos_token=True))


@given(TEXTS)
def test_byte_level_bpe(text: str) -> None:
    expected = BYTE_LEVEL.encode(text).ids
    assert GPT2.hf_tokenizer.encode(text).ids == expected
    assert GPT2.hf_tokenizer.decode(expected) == BYTE_LEVEL.decode(expected)


def test_special_tokens_have_their_names() -> None:
    assert GPT2.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert GPT2.chat_template is None
    metadata = byte_level_metadata("gpt-2") | {"tokenizer.chat_template": "{{ messages }}"}
    assert read(metadata).chat_template == "{{ messages }}"
    assert read(metadata).tool_chat_template is None
    metadata["tokenizer.chat_template.tool_use"] = "{{ tools }}"
    assert read(metadata).tool_chat_template == "{{ tools }}"


@pytest.mark.parametrize(("pre", "added"), [("llama-bpe", False), ("qwen2", True)])
def test_a_file_says_otherwise_who_adds_bos(pre: str, added: bool) -> None:
    ids = read(byte_level_metadata(pre, add_bos_token=added)).hf_tokenizer.encode("the").ids
    assert (ids[0] == 0) == added


def test_eos_is_added_where_the_file_says_so() -> None:
    metadata = byte_level_metadata("gpt-2", add_bos_token=True, add_eos_token=True)
    ids = read(metadata).hf_tokenizer.encode("the").ids
    assert (ids[0], ids[-1]) == (0, 1)


# -- SentencePiece ---------------------------------------------------------------------------------


def sentencepiece_metadata(name: str, **others: Any) -> dict[str, Any]:
    """Scores as SentencePiece's trainer gives them: the first merge has the highest one."""
    backend = KINDS[name]()
    metadata = metadata_of(backend, "llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    merges = json.loads(backend.to_str())["model"]["merges"]
    rank = {"".join(pair): -float(i) for i, pair in enumerate(merges)}
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.scores"] = [rank.get(token, -1e3) for token in tokens]
    metadata["tokenizer.ggml.token_type"][0] = int(TokenType.UNKNOWN)
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in others.items()}


SENTENCEPIECE = {
    "sentencepiece_bpe": {"add_bos_token": False},
    "gemma_bpe": {"add_bos_token": False, "add_space_prefix": False},
}
_READ = {name: read(sentencepiece_metadata(name, **facts)) for name, facts in SENTENCEPIECE.items()}


def gemma4_metadata() -> dict[str, Any]:
    """The merges of Gemma's tokenizer as they are."""
    backend = KINDS["gemma_bpe"]()
    metadata = metadata_of(backend, "gemma4", bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    merges = json.loads(backend.to_str())["model"]["merges"]
    metadata["tokenizer.ggml.merges"] = [" ".join(pair) for pair in merges]
    metadata["tokenizer.ggml.token_type"][0] = int(TokenType.UNKNOWN)
    return metadata


GEMMA4 = read(gemma4_metadata())


@given(text=TEXTS)
def test_gemma4_has_merges(text: str) -> None:
    expected, actual = KINDS["gemma_bpe"](), GEMMA4.hf_tokenizer
    ids = expected.encode(text, add_special_tokens=False).ids
    assert actual.encode(text, add_special_tokens=False).ids == ids
    assert actual.decode(ids) == expected.decode(ids)


@pytest.mark.parametrize("given", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_gemma4_adds_bos_whatever_the_file_says(given: dict[str, bool]) -> None:
    metadata = gemma4_metadata() | {f"tokenizer.ggml.{key}": value for key, value in given.items()}
    assert facts(metadata).adds_bos
    assert read(metadata).hf_tokenizer.encode("the").ids[0] == 1


def test_merges_count_where_a_file_has_scores_besides() -> None:
    """Ollama's Gemma 4: the kind of scores, which are the numbers of the rows."""
    metadata = gemma4_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = [float(i) for i in range(len(tokens))]
    for pre, kind in (("gemma4", "gemma4"), ("default", "llama")):
        others = {"model": "llama", "pre": pre, "scores": scores, "add_space_prefix": False}
        given = metadata | {f"tokenizer.ggml.{key}": value for key, value in others.items()}
        text = "the quick naïve café 你好"
        assert facts(given).kind == kind
        assert read(given).hf_tokenizer.encode(text).ids == GEMMA4.hf_tokenizer.encode(text).ids
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.merges is missing: must be a list"):
        read(metadata)


@pytest.mark.parametrize(
    ("architecture", "pre", "begins_with_space"),
    [("llama", "default", True), ("gemma3", "default", False), ("gemma4", "gemma4", False)],
)
def test_whether_a_text_begins_with_a_space_follows_from_the_model(
    architecture: str, pre: str, begins_with_space: bool
) -> None:
    """Where the file does not say, as Google's Gemma 3 and all of Ollama's."""
    metadata = gemma4_metadata() | {"general.architecture": architecture}
    metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": pre}
    assert (read(metadata).hf_tokenizer.encode("the").tokens[1][0] == "▁") == begins_with_space


@pytest.mark.parametrize("name", SENTENCEPIECE)
@given(text=TEXTS)
def test_sentencepiece_bpe(name: str, text: str) -> None:
    expected, actual = KINDS[name](), _READ[name].hf_tokenizer
    ids = expected.encode(text, add_special_tokens=False).ids
    assert actual.encode(text).ids == ids
    assert actual.decode(ids) == expected.decode(ids)


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_tokens_have_bytes_of_their_own(name: str) -> None:
    found = _READ[name]
    tokenizer = OurTokenizer(found.hf_tokenizer, 400, found.special_tokens)
    ids = tokenizer.encode("the the 你好 é ü\n")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().strip(" ") == "the the 你好 é ü\n"


@pytest.mark.parametrize(("architecture", "expected"), [("phi3", False), ("llama", True)])
def test_special_tokens_of_phi3_take_the_blanks_after_them(
    architecture: str, expected: bool
) -> None:
    metadata = sentencepiece_metadata("gemma_bpe") | {"general.architecture": architecture}
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens += ["<|user|>", "<|endoftext|>"]
    metadata["tokenizer.ggml.token_type"] += [int(TokenType.CONTROL)] * 2
    metadata["tokenizer.ggml.scores"] += [-1e3] * 2
    backend = read(metadata).hf_tokenizer
    plain = backend.encode("the", add_special_tokens=False).ids
    for token, keeps in (("<|user|>", expected), ("<|endoftext|>", True)):
        ids = backend.encode(f"{token} \nthe", add_special_tokens=False).ids
        assert (ids != [tokens.index(token), *plain]) == keeps


def test_characters_that_no_token_writes_are_one_unknown_token() -> None:
    """As in llama.cpp and transformers; here there are no tokens of bytes."""
    metadata = sentencepiece_metadata("sentencepiece_bpe", add_bos_token=False)
    for index, token in enumerate(metadata["tokenizer.ggml.tokens"]):
        if re.fullmatch("<0x..>", token):
            metadata["tokenizer.ggml.tokens"][index] = f"<unused{index}>"
            metadata["tokenizer.ggml.token_type"][index] = int(TokenType.UNUSED)
    tokens = read(metadata).hf_tokenizer.encode("the ☃☃☃").tokens
    assert tokens.count("<unk>") == 1, tokens


def test_sentencepiece_adds_bos_unless_told_otherwise() -> None:
    assert read(sentencepiece_metadata("gemma_bpe")).hf_tokenizer.encode("the").ids[0] == 1


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"ab": -1.0, "bc": -2.0}, ["ab", "c", "d"]),
        ({"ab": -2.0, "bc": -1.0}, ["a", "bc", "d"]),
        ({"ab": -1.0, "cd": -2.0, "abc": -2.0}, ["abc", "d"]),  # the longer part first
    ],
)
def test_merges_follow_the_scores(scores: dict[str, float], expected: list[str]) -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", *"abcd", *scores],
        "tokenizer.ggml.scores": [0.0] * 5 + list(scores.values()),
        "tokenizer.ggml.token_type": [2, *[1] * (4 + len(scores))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.eos_token_id": 4294967295,
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert read(metadata).hf_tokenizer.encode("abcd").tokens == expected


def test_unused_tokens_stand_for_no_text() -> None:
    metadata = byte_level_metadata("gpt-2")
    metadata["tokenizer.ggml.tokens"].append("[PAD]")
    metadata["tokenizer.ggml.token_type"].append(int(TokenType.UNUSED))
    backend = read(metadata).hf_tokenizer
    assert backend.token_to_id("[PAD]") is None
    assert "[PAD]" not in backend.encode("[PAD]").tokens


# -- what is refused -------------------------------------------------------------------------------


SMALL = {"model": "llama", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1]}
SMALL |= {"scores": [0.0, 0.0, 0.0], "eos_token_id": 0}
BAD_VOCABULARIES: list[dict[str, Any]] = [
    {"scores": [0.0, float("nan"), 0.0]},
    {"token_type": [1, 99, 1]},
    {"tokens": ["a", "b", "a"]},
    {"tokens": ["a", "b", "x" * 257]},
]


def test_bad_vocabularies() -> None:
    def read_changed(changes: dict[str, Any]) -> None:
        read({f"tokenizer.ggml.{key}": value for key, value in (SMALL | changes).items()})

    check_refusals("gguf_vocabulary", BAD_VOCABULARIES, read_changed)


NUM = BYTE_LEVEL.get_vocab_size()
BAD_VALUES: list[tuple[str, Any]] = [
    ("model", None),
    ("model", 7),
    *(("model", kind) for kind in ("klingon", "bert", "t5", "rwkv", "plamo2", "no_vocab")),
    ("pre", 7),
    ("pre", "martian"),
    ("pre", None),
    ("tokens", None),
    ("tokens", [1, 2]),
    ("token_type", None),
    ("token_type", [1]),
    ("token_type", [1.0] * NUM),
    ("merges", None),
    ("merges", [1]),
    ("eos_token_id", "1"),
    ("eos_token_id", 1.0),
    ("eos_token_id", -1.0),
    ("eos_token_id", [1]),
    ("eos_token_id", NUM),
    ("eot_token_id", NUM),
    ("bos_token_id", -2),
    ("padding_token_id", "x"),
    ("fim_pre_token_id", "x"),
    ("eos_token_ids", 1),
    ("eos_token_ids", [1, "2"]),
    ("eos_token_ids", [1, NUM]),
    ("add_bos_token", 1),
    ("add_sep_token", "x"),
    ("add_space_prefix", 0),
    ("remove_extra_whitespaces", True),
    ("normalizer.lowercase", True),
    ("precompiled_charsmap", [1, 2]),
    ("eos_token", 1),
]


def test_bad_values_are_named() -> None:
    def read_changed(case: tuple[str, Any]) -> None:
        metadata = byte_level_metadata("gpt-2")
        metadata.pop(f"tokenizer.ggml.{case[0]}", None)
        if case[1] is not None:
            metadata[f"tokenizer.ggml.{case[0]}"] = case[1]
        read(metadata)

    check_refusals("gguf_tokenizer", BAD_VALUES, read_changed)


def test_a_file_with_conversations_says_what_ends_an_answer() -> None:
    metadata = byte_level_metadata("gpt-2")
    del metadata["tokenizer.ggml.eos_token_id"]
    assert facts(metadata).end_tokens == {}
    with pytest.raises(
        ValueError, match=r"tokenizer\.ggml\.eos_token_id is missing: it is required"
    ):
        facts(metadata | {"tokenizer.chat_template": "{{ messages }}"})


def test_tokens_without_roles_need_no_types() -> None:
    names = ("model", "pre", "tokens", "merges")
    metadata = byte_level_metadata("gpt-2")
    plain = {key: metadata[key] for key in (f"tokenizer.ggml.{name}" for name in names)}
    assert read(plain).hf_tokenizer.encode("the").ids == GPT2.hf_tokenizer.encode("the").ids[1:]


@pytest.mark.parametrize("key", sorted(byte_level_metadata("gpt-2")))
def test_a_renamed_key_is_named(key: str) -> None:
    metadata = byte_level_metadata("gpt-2")
    metadata[f"{key}s_"] = metadata.pop(key)
    with pytest.raises(ValueError, match=rf"x\.gguf: {key}"):
        read(metadata)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.chat_template", 1, "=1: must be a string"),
        ("tokenizer.chat_template.rag", 1, "=1: must be a string"),
        ("tokenizer.chat_templates", "rag", '="rag": must be a list of strings'),
        (
            "tokenizer.chat_templates",
            ["rag"],
            r'=\["rag"\]: there is no tokenizer.chat_template.rag',
        ),
    ],
)
def test_bad_templates_are_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"x\.gguf: {key}{message}"):
        facts(byte_level_metadata("gpt-2") | {key: value})


# -- facts without a tokenizer ---------------------------------------------------------------------


def test_facts() -> None:
    found = facts(byte_level_metadata("llama-bpe", eot_token_id=2, eom_token_id=4294967295))
    assert (found.kind, found.pre, found.num_tokens, found.refusal) == (
        "gpt2",
        "llama-bpe",
        NUM,
        None,
    )
    assert found.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert found.end_tokens == {1: "<|end|>", 2: "!"}
    assert (found.adds_bos, found.adds_eos) == (True, False)
    assert (found.chat_template, found.tool_chat_template) == (None, None)


def test_every_end_of_ollamas_list_ends_an_answer() -> None:
    metadata = byte_level_metadata("gpt-2", eos_token_ids=[1, 3, 2, 4294967295])
    assert facts(metadata).end_tokens == {1: "<|end|>", 3: '"', 2: "!"}
    del metadata["tokenizer.ggml.eos_token_id"]
    assert list(facts(metadata).end_tokens) == [1, 3, 2]


@pytest.mark.parametrize("none", [-1, 2**32 - 1, 2**64 - 1])
def test_no_token_has_a_role(none: int) -> None:
    roles = ("eos", "bos", "eot", "unknown", "seperator", "padding", "mask", "cls")
    metadata = byte_level_metadata("gpt-2", add_bos_token=True, add_eos_token=True)
    metadata |= {f"tokenizer.ggml.{role}_token_id": none for role in roles}
    assert facts(metadata).special_tokens == {}
    assert facts(metadata).end_tokens == {}
    assert read(metadata).hf_tokenizer.encode("the").tokens == ["the"]


def test_roles_without_effect_may_lie_beyond_the_vocabulary() -> None:
    names = ("padding", "seperator", "mask", "cls")
    others = {f"{name}_token_id": 500 for name in names}
    assert facts(byte_level_metadata("gpt-2", **others)).special_tokens == GPT2.special_tokens


def test_rows_without_a_token_may_have_the_same_text() -> None:
    metadata = byte_level_metadata("gpt-2")
    metadata["tokenizer.ggml.tokens"] += ["", "", "[PAD]", "[PAD]", "the"]
    metadata["tokenizer.ggml.token_type"] += [1] * 2 + [int(TokenType.UNUSED)] * 3
    backend = read(metadata).hf_tokenizer
    assert backend.encode("the").ids == GPT2.hf_tokenizer.encode("the").ids[1:]
    assert [backend.id_to_token(i) for i in range(NUM, NUM + 5)] == [None] * 5


def test_facts_say_what_is_refused_and_the_way_out() -> None:
    metadata = byte_level_metadata("martian")
    refusal = facts(metadata).refusal
    assert refusal is not None and "--tokenizer DIR|owner/name" in refusal
    with pytest.raises(ValueError, match=re.escape(refusal)):
        read(metadata)


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.ggml.model": "none"}])
def test_a_file_without_a_tokenizer(metadata: dict[str, Any]) -> None:
    refusal = find_tokenizer_refusal(JsonObject(Path("x.gguf"), metadata))
    assert "the file has no tokenizer: give the original model's" in str(refusal)
