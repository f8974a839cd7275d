"""Vocabularies whose merges are listed, as byte-level BPE has them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.native import merges_of_pairs


class MergedVocabulary(Struct, frozen=True, dict=True):
    """A `MergingVocabulary` of tokens and merges.

    Args:
        ids: of the tokens, by their texts, in rising order.
        listed: [M, 3], the ids of both sides and of the result of each merge, the first merge first.
    """

    ids: dict[str, int]
    listed: npt.NDArray[np.int64]

    @classmethod
    def of_pairs(cls, ids: dict[str, int], pairs: Sequence[str]) -> "MergedVocabulary | None":
        """The vocabulary of merges that are listed as "left right"; None: one has no space between two sides, or a side
        or a result is no token."""
        places = merges_of_pairs(list(ids), list(pairs))
        if places is None:
            return None
        return cls(ids, np.fromiter(ids.values(), np.int64, len(ids))[places])

    def part(self, texts: Iterable[str]) -> "MergedVocabulary":
        """As `MergingVocabulary.part`."""
        known = self.ids.keys() & texts
        ids = dict(sorted(((text, self.ids[text]) for text in known), key=itemgetter(1)))
        is_known = np.zeros(max(self.ids.values(), default=-1) + 1, bool)
        is_known[list(ids.values())] = True
        return MergedVocabulary(ids, self.listed[is_known[self.listed].all(axis=1)])

    def merges(self) -> list[tuple[str, str]]:
        """As `MergingVocabulary.merges`."""
        texts = {token_id: text for text, token_id in self.ids.items()}
        left, right, _ = self.listed.T.tolist()
        return list(zip(map(texts.__getitem__, left), map(texts.__getitem__, right), strict=True))

    @cached_property
    def sizes(self) -> list[int]:
        """As `MergingVocabulary.sizes`."""
        return sorted({1, *map(len, self.ids)})

    @property
    def longest(self) -> int:
        """The characters of the longest token, 1 if there is none."""
        return max(self.sizes)
