"""The merges that SentencePiece's scores stand for."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Hashes: TypeAlias = npt.NDArray[np.uint64]

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_FILTER_BITS = 24


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """All splits of each token into two of `ids`, the token with the best score first.

    The order is transformers' (convert_slow_tokenizer.py, `generate_merges`): by falling scores; among tokens of one
    score by falling lengths of the left part and of the right one; then as the tokens stand.

    Splits are looked up by hashes of their parts, for all tokens at once, which takes three fifths of the time of
    looking up texts. Where two texts share a hash, the texts themselves decide.

    Args:
        tokens: that merges may end in, of at most 256 characters.
        scores: of each, no NaN.
        ids: of tokens that merges may be made of; none is "".
    """
    longest = max(map(len, tokens), default=0)
    parts = [part for part in ids if len(part) < longest]  # an added token may have any length
    if not parts:
        return []
    lengths = _lengths(tokens)
    prefixes, wholes = _prefix_hashes(tokens, lengths)
    # Each character but a token's last one ends the left part of a split.
    token, left_length = _places(lengths)
    keep = left_length < lengths[token]
    token, left_length, left = token[keep], left_length[keep], prefixes[keep]
    right = (wholes[token] - left) * _powers(longest, inverse=True)[left_length]

    part_lengths = _lengths(parts)
    known = _prefix_hashes(parts, part_lengths)[1]
    order = np.argsort(known)
    known = known[order]
    if (known[1:] == known[:-1]).any():
        return _merges_of_texts(tokens, scores, ids)
    may_be_known = np.zeros(1 << _FILTER_BITS, bool)
    may_be_known[_short(known)] = True
    rest = np.flatnonzero(may_be_known[_short(left)] & may_be_known[_short(right)])
    left_at, right_at = (_search(known, hashes[rest]) for hashes in (left, right))
    found = (known[left_at] == left[rest]) & (known[right_at] == right[rest])
    rest, left_at, right_at = rest[found], left_at[found], right_at[found]
    token, left_length = token[rest], left_length[rest]

    rows = np.lexsort(
        (token, left_length - lengths[token], -left_length, -np.asarray(scores, float)[token])
    )
    token, left_length = token[rows], left_length[rows]
    left_ids, right_ids = order[left_at[rows]], order[right_at[rows]]
    lefts, rights = ([parts[i] for i in part_ids.tolist()] for part_ids in (left_ids, right_ids))
    merges = list(zip(lefts, rights, strict=True))
    is_same = (
        np.array_equal(part_lengths[left_ids], left_length)
        and np.array_equal(part_lengths[right_ids], lengths[token] - left_length)
        and "".join(chain.from_iterable(merges)) == "".join([tokens[i] for i in token.tolist()])
    )
    return merges if is_same else _merges_of_texts(tokens, scores, ids)


def _merges_of_texts(
    tokens: Sequence[str], scores: Sequence[float], ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """The definition of `merges_from_scores`."""
    merges = [
        (-score, -i, i - len(token), index, token[:i], token[i:])
        for index, (token, score) in enumerate(zip(tokens, scores, strict=True))
        for i in range(1, len(token))
        if token[:i] in ids and token[i:] in ids
    ]
    return [(left, right) for *_, left, right in sorted(merges)]


def _lengths(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _places(
    lengths: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each character of texts that stand one after the other: which text, and its number from 1."""
    text = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    return text, np.arange(1, len(text) + 1) - starts[text]


def _prefix_hashes(texts: Sequence[str], lengths: npt.NDArray[np.int64]) -> tuple[_Hashes, _Hashes]:
    """Hashes of the text up to each character, and of each text: sums of characters times powers, modulo 2**64."""
    data = "".join(texts).encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(data, np.uint32).astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    characters ^= characters >> np.uint64(32)
    _, numbers = _places(lengths)
    longest = int(lengths.max(initial=0))
    sums = np.cumsum(characters * _powers(longest)[numbers - 1], dtype=np.uint64)
    ends = np.concatenate([np.zeros(1, np.uint64), sums])[np.concatenate([[0], np.cumsum(lengths)])]
    return sums - np.repeat(ends[:-1], lengths), ends[1:] - ends[:-1]


def _powers(count: int, inverse: bool = False) -> _Hashes:
    """Of the base, from 0 to `count`."""
    factor = pow(_BASE, -1, 1 << 64) if inverse else _BASE
    return np.array([pow(factor, i, 1 << 64) for i in range(count + 1)], np.uint64)


def _search(known: _Hashes, hashes: _Hashes) -> npt.NDArray[np.int64]:
    """Where each hash is in `known`, if it is; in sorted order, which takes a fraction of the time."""
    order = np.argsort(hashes)
    found = np.empty(len(hashes), np.int64)
    found[order] = np.minimum(np.searchsorted(known, hashes[order]), len(known) - 1)
    return found


def _short(hashes: _Hashes) -> npt.NDArray[np.int64]:
    shortened: npt.NDArray[np.int64] = (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)
    return shortened
