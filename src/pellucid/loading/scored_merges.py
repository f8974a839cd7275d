"""Merges that follow from scores of tokens (SentencePiece's BPE)."""

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.loading.kept_merges import kept_merges


class ScoredMerges(Struct, frozen=True):
    """The `Merges` of a vocabulary. Which merge makes a token depends on its parts alone.

    Args:
        scores: by id, no NaN.
        made: by id, whether merges may make the token. Others are found as single characters only.
        sizes: the characters of the tokens that merges make.
    """

    scores: npt.NDArray[Any]
    made: npt.NDArray[np.bool_]
    sizes: list[int]

    def among(self, ids: dict[str, int]) -> list[tuple[str, str]]:
        """As `Merges.among`."""
        tokens, places = list(ids), list(ids.values())
        scores = self.scores[places].astype(np.float64)
        left, right = kept_merges(tokens, scores, self.made[places]).T.tolist()
        return list(zip(map(tokens.__getitem__, left), map(tokens.__getitem__, right), strict=True))
