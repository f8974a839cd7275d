"""Merges from scores: looked up by hashes, they are those of the texts themselves, in their order."""

import random

import pytest

from pellucid.loading import scored_merges
from pellucid.loading.scored_merges import merges_from_scores


def drawn(seed: int) -> tuple[list[str], list[float], dict[str, int]]:
    """Tokens over few letters, so that most have several splits; many share a score, and not all end merges."""
    rng = random.Random(seed)
    letters = rng.choice(["ab", "▁ae\x00", "é你🙂b", "a"])
    parts = {"".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 90))}
    parts = sorted(parts)
    rng.shuffle(parts)
    tokens = [part for part in parts if rng.random() < 0.8]
    scores = [rng.choice([-1e30, -2.0, -1.0, 0.0, rng.random()]) for _ in tokens]
    return tokens, scores, {part: index for index, part in enumerate(parts)}


@pytest.mark.parametrize("seed", range(40))
def test_hashes_find_what_texts_say(seed: int) -> None:
    tokens, scores, ids = drawn(seed)
    expected = []
    for score in sorted(set(scores), reverse=True):
        of_score = [
            (token[:i], token[i:])
            for token, own in zip(tokens, scores, strict=True)
            if own == score
            for i in range(len(token) - 1, 0, -1)
            if token[:i] in ids and token[i:] in ids
        ]
        expected += sorted(of_score, key=lambda pair: (len(pair[0]), len(pair[1])), reverse=True)
    assert merges_from_scores(tokens, scores, ids) == expected


@pytest.mark.parametrize("base", [0, 1])
def test_texts_that_share_a_hash(monkeypatch: pytest.MonkeyPatch, base: int) -> None:
    expected = [merges_from_scores(*drawn(seed)) for seed in range(10)]
    # The hash of a text is that of its letters in any order, or of its first one.
    monkeypatch.setattr(scored_merges, "_BASE", 1)
    if base == 0:
        monkeypatch.setattr(scored_merges, "_FILTER_BITS", 1)
    assert [merges_from_scores(*drawn(seed)) for seed in range(10)] == expected


def test_nothing_to_merge() -> None:
    assert merges_from_scores([], [], {"a": 0}) == []
    assert merges_from_scores(["a", ""], [0.0, 0.0], {"a": 0}) == []
