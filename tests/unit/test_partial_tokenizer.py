"""A large vocabulary with scores: the first short texts are encoded with the tokens that they can have alone."""

from pathlib import Path
from typing import Any

import pytest
from gguf.constants import TokenType
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from pellucid.facts.json_object import JsonObject
from pellucid.loading import gguf_tokenizer
from pellucid.loading.gguf_tokenizer import read_gguf_tokenizer
from pellucid.loading.partial_tokenizer import MAX_PARTIAL_CHARACTERS, PartialTokenizer
from pellucid.loading.stored_model import whole_tokenizer
from pellucid.text.tokenizer import Tokenizer

ADDED = {"<s>": TokenType.CONTROL, "<x>": TokenType.USER_DEFINED, "a b": TokenType.USER_DEFINED}
FIRST = {"<unk>": TokenType.UNKNOWN} | ADDED
BYTES = {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)}
SCORES = st.dictionaries(
    st.text("abé▁<x", min_size=1, max_size=5).filter(lambda text: text not in FIRST),
    st.sampled_from([-1.0, -2.0, -3.0]),  # many alike
    max_size=30,
)
TEXTS = st.text("abé <x>☃\n▁s", max_size=20)


@pytest.fixture(autouse=True, scope="module")
def every_size() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_tokenizer, "MIN_LATER", 0)
        yield


def tokenizer_of(types: dict[str, TokenType], **values: Any) -> Any:
    given = {"tokens": list(types), "token_type": list(map(int, types.values()))} | values
    metadata = {f"tokenizer.ggml.{key}": value for key, value in given.items()}
    return read_gguf_tokenizer(JsonObject(Path("x.gguf"), metadata)).hf_tokenizer


def read(scores: dict[str, float], first: dict[str, TokenType], **others: Any) -> Any:
    types = first | dict.fromkeys(scores, TokenType.NORMAL)
    values = {
        "model": "llama",
        "scores": [scores.get(token, 0.0) for token in types],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "add_space_prefix": False,
    }
    return tokenizer_of(types, **values | others)


@given(SCORES, st.booleans(), TEXTS)
def test_ids_are_those_of_the_whole(scores: dict[str, float], has_bytes: bool, text: str) -> None:
    lazy = read(scores, FIRST | (BYTES if has_bytes else {}))
    assert isinstance(lazy, PartialTokenizer)
    partial, whole = lazy.make_partial(text), lazy.make_whole()
    actual, expected = partial.encode(text), whole.encode(text)
    assert (actual.ids, actual.offsets) == (expected.ids, expected.offsets)
    assert partial.get_vocab().items() <= whole.get_vocab().items()


ABC = {"a": -1.0, "b": -1.0, "ab": -2.0, "▁": -1.0, "▁ab": -3.0}


def test_its_tokens_are_those_of_the_whole() -> None:
    lazy = read(ABC, FIRST | BYTES | {"[7]": TokenType.UNUSED})
    whole = whole_tokenizer(lazy)
    assert whole is whole_tokenizer(whole) is lazy.make_whole()
    assert lazy.get_vocab() == whole.get_vocab()
    assert lazy.get_vocab_size() == whole.get_vocab_size()
    assert str(lazy.get_added_tokens_decoder()) == str(whole.get_added_tokens_decoder())
    assert lazy.token_to_id("▁ab") == whole.token_to_id("▁ab")
    assert lazy.token_to_id("[7]") is None is whole.token_to_id("[7]")
    for token_id in range(300):
        assert lazy.id_to_token(token_id) == whole.id_to_token(token_id)
        for skipped in (False, True):
            ids = [token_id, token_id, 4]
            assert lazy.decode(ids, skipped) == whole.decode(ids, skip_special_tokens=skipped)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which calls have made a tokenizer."""
    calls: list[str] = []
    for name in ("make_partial", "make_whole"):
        method = getattr(PartialTokenizer, name)

        def counted(*args: Any, name: str = name, method: Any = method) -> Any:
            calls.append(name)
            return method(*args)

        monkeypatch.setattr(PartialTokenizer, name, counted)
    return calls


def test_many_characters_take_the_whole(made: list[str]) -> None:
    lazy, text = read(ABC, FIRST), "<s>" + "ab " * (MAX_PARTIAL_CHARACTERS // 6 - 1)
    found = [lazy.encode(text).ids for _ in range(3)]
    assert made == ["make_partial", "make_partial", "make_whole"]
    assert found[0] == found[1] == found[2] == lazy.encode_batch([text])[0].ids


def test_no_text_waits_once_the_whole_was_asked_for(made: list[str]) -> None:
    tokenizer = Tokenizer(read(ABC, FIRST), 100, {})
    tokenizer.make_whole()
    tokenizer.encode("ab")
    assert "make_partial" not in made


@pytest.mark.parametrize(
    ("first", "others"),
    [
        (FIRST, {"add_space_prefix": True}),
        (BYTES | {"<0x41>": TokenType.NORMAL} | ADDED, {"unknown_token_id": 4294967295}),
        ({"?": TokenType.UNKNOWN} | ADDED, {}),
    ],
    ids=["a space before", "merged bytes", "an unknown token that is a character"],
)
def test_what_depends_on_more_than_parts_is_whole(
    first: dict[str, TokenType], others: dict[str, Any]
) -> None:
    assert isinstance(read(ABC, first, **others), HfTokenizer)


LETTERS = dict.fromkeys("abcĠĊÃ©ÌģĤĥ<>se", TokenType.NORMAL)
WORDS = st.lists(
    st.tuples(st.text("abcĠÃ©", min_size=1, max_size=2), st.text("abcĠÃ©", min_size=1, max_size=2)),
    max_size=12,
)


@given(
    WORDS,
    st.sampled_from(["gpt-2", "llama-bpe", "qwen2"]),
    st.text("abcé \n<s>e\u0301", max_size=16),
)
def test_listed_merges_make_the_same_ids(pairs: list[tuple[str, str]], pre: str, text: str) -> None:
    """With regular expressions, with words that are taken whole, and with characters that are composed."""
    results = {"".join(pair): TokenType.NORMAL for pair in pairs}
    sides = dict.fromkeys((side for pair in pairs for side in pair), TokenType.NORMAL)
    types = {"<s>": TokenType.CONTROL} | LETTERS | sides | results
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    merges = [" ".join(pair) for pair in pairs]
    lazy = tokenizer_of(types, model="gpt2", pre=pre, merges=merges, **ends)
    assert isinstance(lazy, PartialTokenizer)
    actual, expected = lazy.encode(text), lazy.make_whole().encode(text)
    assert (actual.ids, actual.offsets) == (expected.ids, expected.offsets)


@pytest.mark.parametrize("merges", [["a b", "b c"], ["a b", "a"], ["a b", "a b b"], [" a b"]])
def test_what_is_not_usual_is_whole_at_once(merges: list[str]) -> None:
    """A merge of what is no token is refused before any text, and a side that has a space is no token here."""
    types = dict.fromkeys(["a", "b", "c", "ab", "<s>"], TokenType.NORMAL)
    with pytest.raises(ValueError, match=r"no pair|not a tokenizer"):
        tokenizer_of(types, model="gpt2", pre="gpt-2", merges=merges)
