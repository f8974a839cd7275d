"""Merges that a file lists, as byte-level BPE has them."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

ListedIds: TypeAlias = npt.NDArray[np.int32]


class ListedMerges(Struct, frozen=True):
    """The `Merges` of a vocabulary.

    Args:
        listed: [M, 3], the ids of both sides and of the result of each merge, the first merge first.
        num_ids: all ids are smaller.
        sizes: the characters of all tokens.
    """

    listed: ListedIds
    num_ids: int
    sizes: list[int]

    def among(self, ids: dict[str, int]) -> list[tuple[str, str]]:
        """As `Merges.among`."""
        is_known = np.zeros(self.num_ids, bool)
        is_known[list(ids.values())] = True
        texts = {token_id: text for text, token_id in ids.items()}
        left, right, _ = self.listed[is_known[self.listed].all(axis=1)].T.tolist()
        return list(zip(map(texts.__getitem__, left), map(texts.__getitem__, right), strict=True))
