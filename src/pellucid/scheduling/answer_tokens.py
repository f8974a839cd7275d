"""The tokens of an answer as a view: what asks for each token's successors must not copy the answer each time."""

from collections.abc import Iterator, Sequence
from typing import overload


class AnswerTokens(Sequence[int]):
    """The first tokens of an output, and guesses of those that follow. It holds no copy of the output.

    Args:
        output_token_ids: a list that only grows, but for its last tokens if these are guesses.
        num_output_tokens: of these, the first that belong to the answer.
        guesses: tokens behind them.
        num_settled: tokens that no later view of the same answer replaces by others.
    """

    __slots__ = ("_guesses", "_length", "_num_output_tokens", "_output_token_ids", "num_settled")

    def __init__(
        self,
        output_token_ids: Sequence[int],
        num_output_tokens: int,
        guesses: Sequence[int],
        num_settled: int,
    ) -> None:
        self._output_token_ids = output_token_ids
        self._num_output_tokens = num_output_tokens
        self._guesses = guesses
        self._length = num_output_tokens + len(guesses)
        self.num_settled = num_settled

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice) and index.step is None:
            start, stop, _ = index.indices(self._length)
            return self._between(start, stop)
        return [*self][index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._between(0, self._length))

    def _between(self, start: int, stop: int) -> list[int]:
        num_output = self._num_output_tokens
        guesses = self._guesses[max(0, start - num_output) : max(0, stop - num_output)]
        return [*self._output_token_ids[start : min(stop, num_output)], *guesses]


class SeenTokens:
    """The tokens of an answer that somebody has followed, to find what is new in its next view.

    Only tokens that were not settled are compared again, so following an answer takes time in proportion to its
    length, not to the square of it.
    """

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._num_settled = 0

    def __len__(self) -> int:
        return len(self._token_ids)

    def compare(self, token_ids: Sequence[int]) -> tuple[int, list[int]]:
        """How many of the seen tokens a view begins with, and the view's tokens behind these.

        Args:
            token_ids: an `AnswerTokens` of the answer that was seen, or any tokens, which are compared from the first
                one on.
        """
        start = min(self._num_settled, _num_settled(token_ids))
        seen, view = self._token_ids[start:], list(token_ids[start:])
        num_equal = 0
        for own, other in zip(seen, view, strict=False):
            if own != other:
                break
            num_equal += 1
        return start + num_equal, view[num_equal:]

    def cut(self, num_tokens: int) -> None:
        """Forgets the tokens behind the first `num_tokens`."""
        del self._token_ids[num_tokens:]
        self._num_settled = min(self._num_settled, num_tokens)

    def extend(self, new: Sequence[int], token_ids: Sequence[int]) -> None:
        """Appends the new tokens of a view that was compared: its tokens are the seen ones now."""
        self._token_ids += new
        self._num_settled = _num_settled(token_ids)


def _num_settled(token_ids: Sequence[int]) -> int:
    return token_ids.num_settled if isinstance(token_ids, AnswerTokens) else 0
