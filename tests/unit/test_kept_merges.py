"""Merges of scores in the cache folder: computed once for each vocabulary, and again where a file is damaged."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pellucid.backends.native import Texts, merges_of_scores
from pellucid.loading import kept_merges as module
from pellucid.loading.cache_file import cache_path
from pellucid.loading.kept_merges import MAX_KEPT, kept_merges

TOKENS = ["a", "b", "ab", "abb", "é", "aé"]
SCORES = np.array([0, 0, -1, -2, 0, -3], np.float64)
MADE = np.ones(6, bool)
MERGES = [[0, 1], [2, 1], [0, 4]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # No file of another file system could replace one here.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(module, "MIN_TOKENS", 1)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tokens of each call that computes merges."""
    calls: list[Any] = []

    def compute(tokens: Texts, *others: Any) -> npt.NDArray[np.int32]:
        calls.append(tokens.tolist())
        return merges_of_scores(tokens, *others)

    monkeypatch.setattr(module, "merges_of_scores", compute)
    return calls


def files() -> list[Path]:
    return list(cache_path("merges").iterdir())


def test_merges_are_computed_once(computed: list[Any]) -> None:
    for _ in range(3):
        assert kept_merges(TOKENS, SCORES, MADE).tolist() == MERGES
    assert computed == [TOKENS]


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": ["a", "b", "ab", "abb", "é", "bé"]},
        {"tokens": ["a", "ba", "b", "abb", "é", "aé"]},  # the same characters one after the other
        {"scores": SCORES - np.arange(6)},
        {"made": MADE & [True, True, False, True, True, True]},
    ],
    ids=["text", "cut", "scores", "made"],
)
def test_another_vocabulary_has_other_merges(changed: Any, computed: list[Any]) -> None:
    given: Any = {"tokens": TOKENS, "scores": SCORES, "made": MADE}
    kept_merges(**given)
    tokens, *others = (given | changed).values()
    found = kept_merges(tokens, *others)
    assert found.tolist() == merges_of_scores(Texts(tokens), *others).tolist()
    assert len(computed) == len(files()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-8],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data + bytes(8),
    ],
    ids=["empty", "cut", "flipped", "longer"],
)
def test_a_damaged_file_is_written_anew(damage: Any, computed: list[Any]) -> None:
    kept_merges(TOKENS, SCORES, MADE)
    [file] = files()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert kept_merges(TOKENS, SCORES, MADE).tolist() == MERGES
    assert file.read_bytes() == whole
    assert len(computed) == 2


def test_no_merges_are_kept_as_well(computed: list[Any]) -> None:
    for _ in range(2):
        assert kept_merges(["a"], SCORES[:1], MADE[:1]).shape == (0, 2)
    assert len(computed) == 1


def test_the_oldest_files_are_removed() -> None:
    kept_merges(TOKENS, SCORES, MADE)
    [oldest] = files()
    os.utime(oldest, (0, 0))
    for number in range(MAX_KEPT):
        kept_merges(TOKENS, SCORES - number - 1, MADE)
    assert len(files()) == MAX_KEPT
    assert not oldest.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert kept_merges(TOKENS, SCORES, MADE).tolist() == MERGES


def test_few_tokens_need_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_TOKENS", len(TOKENS) + 1)
    assert kept_merges(TOKENS, SCORES, MADE).tolist() == MERGES
    assert not cache_path("merges").exists()
