"""Stop strings: finds them in text that arrives in pieces, and holds their characters back."""

from collections import deque
from collections.abc import Sequence

from pellucid.text.responses.reasoning_marks import ReasoningMarks


class StopStrings:
    """Some stop strings, compiled. Never changed afterwards: the answers of a request share it.

    The automaton of Aho and Corasick (1975): each node is a prefix of a stop string, and the current one
    is the longest that the text so far ends with.

    Args:
        stop: the stop strings, none empty; an empty sequence never matches.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._children: list[dict[str, int]] = [{}]
        # Per node: its number of characters, which may turn out to begin a stop string
        self.depth = [0]
        # Per node: the longest stop string that the node's text ends with
        self.match: list[str | None] = [None]
        for string in stop:
            self._insert(string)
        # Per node: the node of the longest proper suffix of its text that is a prefix of a stop string
        self._suffix = [0] * len(self.depth)
        # Breadth first: suffixes are shorter, so they are linked already.
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            if self.match[node] is None:
                self.match[node] = self.match[self._suffix[node]]
            for char, child in self._children[node].items():
                self._suffix[child] = self.advance(self._suffix[node], char)
                queue.append(child)

    def advance(self, node: int, char: str) -> int:
        """The node after one more character."""
        while node and char not in self._children[node]:
            node = self._suffix[node]
        return self._children[node].get(char, 0)

    def advance_by(self, node: int, text: str) -> int:
        """The node after some more characters."""
        for char in text:
            node = self.advance(node, char)
        return node

    def _insert(self, string: str) -> None:
        node = 0
        for char in string:
            child = self._children[node].setdefault(char, len(self.depth))
            if child == len(self.depth):
                self._children.append({})
                self.depth.append(self.depth[node] + 1)
                self.match.append(None)
            node = child
        self.match[node] = string


class StopStringMatcher:
    """Passes one answer's text on until a stop string is complete.

    The text ends at the first character that completes any stop string; of several that this character
    completes, the longest, which starts first, is the one matched. The rule looks at no later text, so
    generation stops at once, and how the text was split into pieces makes no difference. Exactly the
    characters that may turn out to begin a stop string are held back.

    Args:
        include_in_output: let the matched stop string out as well. Nothing needs to be held back then.
        reasoning: pass on the text of reasoning, and the white space after it, without looking for stop
            strings; None: look everywhere.

    Attributes:
        matched: the stop string that was found.
    """

    def __init__(
        self,
        stop: StopStrings,
        include_in_output: bool = False,
        reasoning: ReasoningMarks | None = None,
    ) -> None:
        self.matched: str | None = None
        self._stop = stop
        self._include = include_in_output
        self._reasoning = None if reasoning is None else _ReasoningFinder(reasoning)
        self._node = 0
        self._held = ""

    def push(self, text: str) -> str:
        """Takes the next piece of text; returns what may be shown now. After a match always ""."""
        if self.matched is not None:
            return ""
        for index, char in enumerate(text):
            if self._reasoning is not None and self._reasoning.has(char):
                self._node = 0
                continue
            self._node = self._stop.advance(self._node, char)
            self.matched = self._stop.match[self._node]
            if self.matched is not None:
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen if self._include else seen[: -len(self.matched)]
        seen = self._held + text
        certain = len(seen) if self._include else len(seen) - self._stop.depth[self._node]
        self._held = seen[certain:]
        return seen[:certain]

    def flush(self) -> str:
        """The text has ended: returns what was held back; nothing if it is called again."""
        held, self._held = self._held, ""
        return held


class _ReasoningFinder:
    """Tells which characters of a text are reasoning, one after the other.

    The text that closes reasoning and the white space after it count as reasoning. The text that opens
    reasoning is known by its last character only.
    """

    def __init__(self, marks: ReasoningMarks) -> None:
        self._opens, self._closes = StopStrings(marks.opens), StopStrings(marks.closes)
        self._is_open = marks.begins_open
        self._is_behind = False  # only white space came since the end of reasoning
        self._node = 0

    def has(self, char: str) -> bool:
        """Whether the next character is a part of reasoning."""
        marks = self._closes if self._is_open else self._opens
        self._node = marks.advance(self._node, char)
        if marks.match[self._node] is not None:
            self._is_behind, self._is_open, self._node = self._is_open, not self._is_open, 0
            return True
        self._is_behind = self._is_behind and char.isspace()
        return self._is_open or self._is_behind
