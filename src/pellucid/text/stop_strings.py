"""Finds stop strings in text that arrives in pieces, and lets out none of their characters."""

from collections import deque
from collections.abc import Sequence


class StopStringMatcher:
    """Passes one request's text on until a stop string is complete.

    The text ends at the first character that completes any stop string; of several that this character
    completes, the longest, which starts first, is the one matched. The rule looks at no later text, so
    generation stops at once, and how the text was split into pieces makes no difference.

    The automaton of Aho and Corasick (1975): each node is a prefix of a stop string, and the current one
    is the longest that the text so far ends with. Its depth is what must be held back, no more, no less.

    Args:
        stop: the stop strings, none empty; an empty sequence never matches.
        include_in_output: let the matched stop string out as well. Nothing needs to be held back then.

    Raises:
        ValueError: `stop` is a bare string or holds something else than non-empty strings.
    """

    matched: str | None  # the stop string that was found

    def __init__(self, stop: Sequence[str], include_in_output: bool = False) -> None:
        if isinstance(stop, str):
            raise ValueError(f"stop must be a list of strings, got the string {stop!r}")
        for string in stop:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop must hold non-empty strings, got {string!r}")
        self.matched = None
        self._include = include_in_output
        self._children: list[dict[str, int]] = [{}]
        self._depth = [0]
        # Per node: the longest stop string that the node's text ends with
        self._match: list[str | None] = [None]
        for string in stop:
            self._insert(string)
        # Per node: the node of the longest proper suffix of its text that is a prefix of a stop string
        self._suffix = [0] * len(self._depth)
        self._link_suffixes()
        self._node = 0
        self._held = ""

    def push(self, text: str) -> str:
        """Takes the next piece of text; returns what may be shown now. After a match always ""."""
        if self.matched is not None:
            return ""
        if not self._children[0]:  # no stop strings: nothing to walk through
            return text
        for index, char in enumerate(text):
            self._node = self._advance(self._node, char)
            self.matched = self._match[self._node]
            if self.matched is not None:
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen if self._include else seen[: -len(self.matched)]
        seen = self._held + text
        certain = len(seen) if self._include else len(seen) - self._depth[self._node]
        self._held = seen[certain:]
        return seen[:certain]

    def flush(self) -> str:
        """The text has ended: returns what was held back. Called once, after the last `push`."""
        held, self._held = self._held, ""
        return held

    def _insert(self, string: str) -> None:
        node = 0
        for char in string:
            child = self._children[node].setdefault(char, len(self._depth))
            if child == len(self._depth):
                self._children.append({})
                self._depth.append(self._depth[node] + 1)
                self._match.append(None)
            node = child
        self._match[node] = string

    def _link_suffixes(self) -> None:
        queue = deque(
            self._children[0].values()
        )  # breadth first: suffixes are shorter, so already linked
        while queue:
            node = queue.popleft()
            if self._match[node] is None:
                self._match[node] = self._match[self._suffix[node]]
            for char, child in self._children[node].items():
                self._suffix[child] = self._advance(self._suffix[node], char)
                queue.append(child)

    def _advance(self, node: int, char: str) -> int:
        while node and char not in self._children[node]:
            node = self._suffix[node]
        return self._children[node].get(char, 0)
