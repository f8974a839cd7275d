"""Merges that scores of tokens stand for: of all splits of a token the one that is ever applied; and listed merges."""

import random
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from pellucid.backends.native import Texts, TokenTable, merges_of_pairs, merges_of_scores

Vocabulary = tuple[list[str], list[float], list[bool]]
Merges = list[tuple[str, str]]


def drawn(seed: int) -> tuple[Vocabulary, str]:
    """Tokens over few letters, so that most have several splits; many share a score, and not all are made."""
    rng = random.Random(seed)
    letters = rng.choice(["ab", "▁ae\x00", "é你🙂b", "a"])
    parts = {"".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 90))}
    tokens = sorted(parts | set(letters[: rng.randint(0, 9)]))
    rng.shuffle(tokens)
    scores = [rng.choice([-1e30, -2.0, -1.0, 0.0, rng.random()]) for _ in tokens]
    return (tokens, scores, [rng.random() < 0.9 for _ in tokens]), letters


def all_merges(tokens: list[str], scores: list[float], made: list[bool]) -> Merges:
    """Every split of a token into two others, in the order of transformers (convert_slow_tokenizer.py)."""
    known = set(tokens)
    found = [
        (-score, -i, i - len(token), index, token[:i], token[i:])
        for index, (token, score, is_made) in enumerate(zip(tokens, scores, made, strict=True))
        if is_made
        for i in range(1, len(token))
        if token[:i] in known and token[i:] in known
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def merges(tokens: list[str], scores: list[float], made: list[bool]) -> Merges:
    places = merges_of_scores(Texts(tokens), np.array(scores, np.float64), np.array(made, bool))
    return [(tokens[left], tokens[right]) for left, right in places]


def last_merge(token: str, places: dict[tuple[str, str], int]) -> tuple[str, str] | None:
    """The merge that makes the token of its own text; None: none does."""
    parts, last = list(token), None
    while len(parts) > 1:
        pairs = list(pairwise(parts))
        at = min(range(len(pairs)), key=lambda i: places.get(pairs[i], len(places)))
        if pairs[at] not in places:
            return None
        last = pairs[at]
        parts[at : at + 2] = ["".join(last)]
    return last


@pytest.mark.parametrize("seed", range(60))
def test_one_split_of_each_token(seed: int) -> None:
    vocabulary, _ = drawn(seed)
    everything = all_merges(*vocabulary)
    places = {pair: place for place, pair in enumerate(everything)}
    tokens = set(vocabulary[0])
    applied = {
        last_merge(token, places) for token in tokens if all(letter in tokens for letter in token)
    }
    assert merges(*vocabulary) == [pair for pair in everything if pair in applied]


@pytest.mark.parametrize("seed", range(60))
def test_texts_have_the_tokens_that_all_splits_give(seed: int) -> None:
    vocabulary, letters = drawn(seed)
    ids = {token: index for index, token in enumerate(vocabulary[0])}
    of_all, of_one = (
        Tokenizer(BPE(ids, pairs)) for pairs in (all_merges(*vocabulary), merges(*vocabulary))
    )
    rng = random.Random(seed)
    for _ in range(30):
        text = "".join(rng.choices(letters, k=rng.randint(1, 40)))
        assert of_one.encode(text).ids == of_all.encode(text).ids, text


def test_nothing_to_merge() -> None:
    assert merges([], [], []) == []
    assert merges(["a"], [0.0], [True]) == []
    assert merges(["ab", "b"], [0.0, 0.0], [True, True]) == []  # "a" is no token


def test_arguments_of_other_lengths() -> None:
    with pytest.raises(ValueError, match="one for each token"):
        merges_of_scores(Texts(["a"]), np.zeros(2), np.zeros(1, bool))
    with pytest.raises(ValueError, match="one for each token"):
        merges_of_scores(Texts(["a"]), np.zeros(1), np.zeros(0, bool))


@pytest.mark.parametrize("seed", range(40))
def test_listed_pairs_are_looked_up(seed: int) -> None:
    """A left side may begin with a space."""
    (tokens, *_), letters = drawn(seed)
    tokens = list(dict.fromkeys([*tokens, *(" " + token for token in tokens)]))
    pairs = all_merges(tokens, [0.0] * len(tokens), [True] * len(tokens))
    listed = list(map(" ".join, pairs))
    table = TokenTable(Texts(tokens), np.ones(len(tokens), bool))
    found = merges_of_pairs(table, Texts(listed))
    assert found is not None
    texts = [tuple(tokens[place] for place in merge) for merge in found]
    assert texts == [(left, right, left + right) for left, right in pairs]
    for unknown in ("z " + letters[0], letters[0] + " z", letters[0], "", " "):
        assert merges_of_pairs(table, Texts([*listed, unknown])) is None
