"""The names of the events by which a stream brings items."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class EventNames:
    """The names of an item's events.

    Attributes:
        item_prefix: of the item's id.
        text: of the events by which its text grows and ends.
        part: of the events of the part that has the text; None: it has no parts.
        index: the field for the number of the part.
    """

    item_prefix: str
    text: str
    part: str | None = None
    index: str | None = None


class ItemEvents(Enum):
    """The kinds of items in a stream."""

    TEXT = EventNames("msg", "output_text", "content_part", "content_index")
    REASONING = EventNames("rs", "reasoning_text", "content_part", "content_index")
    SUMMARY = EventNames("rs", "reasoning_summary_text", "reasoning_summary_part", "summary_index")
    ARGUMENTS = EventNames("fc", "function_call_arguments")
    INPUT = EventNames("ctc", "custom_tool_call_input")
