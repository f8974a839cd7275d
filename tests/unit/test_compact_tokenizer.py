"""The compact form of tokenizer.json encodes as the original does."""

import json

import pytest
from tokenizers import Tokenizer, models

from pellucid.text.compact_tokenizer import compact_tokenizer
from support.tokenizer_kinds import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokenizer(kind: str) -> None:
    tokenizer = KINDS[kind]()
    data = tokenizer.to_str(pretty=True).encode()
    compact = compact_tokenizer(data)
    assert len(compact) < len(data)
    assert Tokenizer.from_buffer(compact).to_str() == tokenizer.to_str()


def test_merges_with_blanks_stay_lists() -> None:
    merges = [("a", " "), ("a ", "b")]
    vocabulary = {token: i for i, token in enumerate(("a", "b", " ", "a ", "a b"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    compact = compact_tokenizer(tokenizer.to_str().encode())
    assert json.loads(compact)["model"]["merges"] == [list(pair) for pair in merges]
    assert Tokenizer.from_buffer(compact).to_str() == tokenizer.to_str()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[1]",
        b'{"model": 1}',
        b'{"model": {"merges": 2}}',
        b'{"model": {"merges": [[1, 2]]}}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_tokenizer_stays_as_it_is(data: bytes) -> None:
    assert compact_tokenizer(data) == data
