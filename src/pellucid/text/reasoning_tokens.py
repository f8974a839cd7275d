"""Reasoning, token by token: which tokens of an answer are reasoning, and the budget that ends it."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from pellucid.scheduling.answer_tokens import SeenTokens
from pellucid.text.responses.reasoning_marks import ReasoningMarks
from pellucid.text.stop_strings import StopStrings

MAX_CHARACTER_BYTES = 4  # of a character in UTF-8


class ReasoningState(Struct, frozen=True):
    """The state after some tokens of an answer.

    Attributes:
        is_open: the next token is reasoning, unless it belongs to the text that ends reasoning.
        node: how much of a text that ends (or begins) reasoning has arrived: a node of its automaton.
        num_tokens: tokens that are reasoning for certain.
        undecided: tokens that may turn out to be the beginning of the text that ends reasoning: for each, the
            number of bytes from its first byte on.
        tail: the last bytes, which may be a part of a character.
    """

    is_open: bool
    node: int = 0
    num_tokens: int = 0
    undecided: tuple[int, ...] = ()
    tail: bytes = b""

    @property
    def num_reasoning_tokens(self) -> int:
        """Of an answer that ends here. The texts around reasoning do not count."""
        return self.num_tokens + len(self.undecided)


class ReasoningTokens:
    """Tells which tokens of the answers to one prompt are reasoning. It holds no state of an answer."""

    def __init__(self, marks: ReasoningMarks, bytes_of: Callable[[int], bytes]) -> None:
        self._opens, self.closes = _automaton(marks.opens), _automaton(marks.closes)
        self._bytes_of = bytes_of
        self.first = ReasoningState(marks.begins_open)

    def after(self, state: ReasoningState, token_id: int) -> ReasoningState:
        """The state after one more token."""
        data = self._bytes_of(token_id)
        is_open, node, num_tokens = state.is_open, state.node, state.num_tokens
        # If reasoning is not open, the token is no part of it, even if it opens it
        undecided = [distance + len(data) for distance in (*state.undecided, 0) if is_open]
        # Bytes as characters: a token may hold a part of a character
        for index, char in enumerate(data.decode("latin-1"), 1):
            marks = self.closes if is_open else self._opens
            node = marks.advance(node, char)
            mark = marks.match[node]
            if mark is None:
                continue
            if is_open:
                num_behind = len(data) - index
                num_tokens += sum(distance > len(mark) + num_behind for distance in undecided)
                undecided = []
            is_open, node = not is_open, 0
        if is_open:
            depth = self.closes.depth[node]
            num_tokens += sum(distance > depth for distance in undecided)
            undecided = [distance for distance in undecided if distance <= depth]
        tail = (state.tail + data)[1 - MAX_CHARACTER_BYTES :]
        return ReasoningState(is_open, node, num_tokens, tuple(undecided), tail)


class ThinkingBudget:
    """The budget of one answer: when its reasoning has used the budget up, the text that ends reasoning is forced.

    The forced token is a function of the answer's tokens alone. The states after the tokens of the last call are
    stored, so that a call with one more token costs one step.

    Args:
        num_tokens: the budget, over all regions of reasoning of the answer.
        next_token_ids: the token that continues a text that ends reasoning, by node of these texts' automaton.
    """

    def __init__(
        self, tokens: ReasoningTokens, num_tokens: int, next_token_ids: dict[int, int]
    ) -> None:
        self._tokens = tokens
        self._num_tokens = num_tokens
        self._next_token_ids = next_token_ids
        self._seen = SeenTokens()
        self._states = [tokens.first]

    @classmethod
    def of(
        cls,
        marks: ReasoningMarks,
        num_tokens: int,
        bytes_of: Callable[[int], bytes],
        encode: Callable[[str], Sequence[int]],
    ) -> "ThinkingBudget":
        """The budget of an answer.

        Args:
            marks: the texts around reasoning. Of several that end it, the one of the fewest tokens is forced.
            encode: the tokens of a text, without any around it.
        """
        tokens = ReasoningTokens(marks, bytes_of)
        next_token_ids: dict[int, int] = {}
        for mark in sorted(marks.closes, key=lambda mark: len(encode(mark))):
            node = 0
            for index, char in enumerate(mark):
                behind = node
                for token_id in encode(mark[index:]):
                    next_token_ids.setdefault(behind, token_id)
                    behind = tokens.closes.advance_by(behind, bytes_of(token_id).decode("latin-1"))
                node = tokens.closes.advance_by(node, char.encode().decode("latin-1"))
        return cls(tokens, num_tokens, next_token_ids)

    def copy(self) -> "ThinkingBudget":
        """The same budget for another answer, from its first token on."""
        return ThinkingBudget(self._tokens, self._num_tokens, self._next_token_ids)

    def forced_token(self, token_ids: Sequence[int]) -> int | None:
        """The only token that may come next; None: any.

        A character that is not complete is completed first, if that takes few tokens.
        """
        self._go_to(token_ids)
        state = self._states[-1]
        num_beyond = state.num_tokens - self._num_tokens
        if not state.is_open or num_beyond < 0:
            return None
        waits = not state.node and _is_incomplete(state.tail)
        if waits and num_beyond < MAX_CHARACTER_BYTES - 1:
            return None
        return self._next_token_ids.get(state.node, self._next_token_ids[0])

    def _go_to(self, token_ids: Sequence[int]) -> None:
        num_equal, new = self._seen.compare(token_ids)
        self._seen.cut(num_equal)  # drafts were wrong
        del self._states[num_equal + 1 :]
        for token_id in new:
            self._states.append(self._tokens.after(self._states[-1], token_id))
        self._seen.extend(new, token_ids)


def _automaton(marks: Sequence[str]) -> StopStrings:
    return StopStrings([mark.encode().decode("latin-1") for mark in marks])


def _is_incomplete(tail: bytes) -> bool:
    """Whether bytes end within a character of UTF-8."""
    for num_behind, byte in enumerate(reversed(tail)):
        if byte >= 0xC0:  # begins a character of 2 to 4 bytes
            return num_behind + 1 < 2 + (byte >= 0xE0) + (byte >= 0xF0)
        if byte < 0x80:
            return False
    return False
