"""Reasoning marks: the texts between which an answer's reasoning stands, for code that needs no parser."""

from msgspec import Struct


class ReasoningMarks(Struct, frozen=True):
    """The texts around reasoning in the answers to one prompt.

    Attributes:
        opens: each begins reasoning.
        closes: each ends it.
        begins_open: the prompt has begun the reasoning.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    begins_open: bool
