"""An index of n-grams: where the end of a text occurred before, in O(1) a token."""

from collections.abc import Sequence
from itertools import pairwise

# The least number of tokens at the end that must agree, and the number beyond which more do not count.
MIN_MATCH, MAX_MATCH = 2, 8
MAX_TRIED = 8  # occurrences of the last two tokens, the latest first


class NgramIndex:
    """A text that grows, and all places of each pair of neighbours in it.

    The places of a pair are a chain from the latest to the first, as in LZ77 compressors: a token more takes
    constant time and about 100 bytes.

    Attributes:
        token_ids: the text.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        # A place is the index of the token after a pair; 0 is none.
        self._latest: dict[tuple[int, int], int] = {}
        self._before = [0, 0]  # for each place the one before it with the same pair

    def __len__(self) -> int:
        return len(self.token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Appends tokens to the text."""
        text, latest, before = self.token_ids, self._latest, self._before
        text += token_ids
        first = len(before)
        for place, pair in enumerate(pairwise(text[first - 2 :]), first):
            before.append(latest.get(pair, 0))
            latest[pair] = place

    def find(self, end: Sequence[int]) -> tuple[int, int]:
        """Finds where the same last tokens occurred before.

        Args:
            end: the last tokens of a text, or all of it; may be `token_ids`, whose own end is not found.

        Returns:
            How many tokens agree, and the index of the token after them: among the latest `MAX_TRIED` places,
            the latest one where most tokens agree. (0, 0) if there is none.
        """
        if len(end) < MIN_MATCH:
            return 0, 0
        text, longest = self.token_ids, min(MAX_MATCH, len(end))
        place = self._latest.get((end[-2], end[-1]), 0)
        if place == len(text):
            place = self._before[place]
        best, best_place = 0, 0
        for _ in range(MAX_TRIED):
            if not place:
                break
            length, limit = MIN_MATCH, min(longest, place)
            while length < limit and text[place - 1 - length] == end[-1 - length]:
                length += 1
            if length > best:
                best, best_place = length, place
                if length == longest:
                    break
            place = self._before[place]
        return best, best_place
