"""Vocabularies whose tokens have scores, from which merges follow (SentencePiece's BPE)."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.loading.kept_merges import kept_merges


class ScoredVocabulary(Struct, frozen=True, dict=True):
    """Tokens that stand for text.

    Args:
        ids: of the T tokens, by their texts, in rising order.
        scores: [T], no NaN.
        made: [T], whether merges may make the token. Others are found as single characters only.
    """

    ids: dict[str, int]
    scores: npt.NDArray[np.float64]
    made: npt.NDArray[np.bool_]

    def part(self, texts: Iterable[str]) -> "ScoredVocabulary":
        """The tokens among `texts`. Where `texts` hold all parts of each of them, the merges of this vocabulary are
        those of the whole one that make these tokens: which merge makes a token depends on its parts alone."""
        known = self.ids.keys() & texts
        ids = {text: self.ids[text] for text in sorted(known, key=self.ids.__getitem__)}
        places = np.searchsorted(self._sorted_ids, list(ids.values()))
        return ScoredVocabulary(ids, self.scores[places], self.made[places])

    def merges(self) -> list[tuple[str, str]]:
        """As `MergingVocabulary.merges`."""
        tokens = list(self.ids)
        left, right = kept_merges(tokens, self.scores, self.made).T.tolist()
        return list(zip(map(tokens.__getitem__, left), map(tokens.__getitem__, right), strict=True))

    @cached_property
    def sizes(self) -> list[int]:
        """As `MergingVocabulary.sizes`."""
        return sorted({1, *map(int, np.flatnonzero(np.bincount(self.lengths[self.made])))})

    @property
    def longest(self) -> int:
        """The characters of the longest token that merges make, 1 where they make none."""
        return max(self.sizes)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[T], in characters."""
        return np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    @cached_property
    def _sorted_ids(self) -> npt.NDArray[np.int64]:
        return np.fromiter(self.ids.values(), np.int64, len(self.ids))
