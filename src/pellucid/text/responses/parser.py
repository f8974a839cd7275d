"""The answer parser: splits text into reasoning, content and tool calls by a response template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import regex

from pellucid.inputs.conversation import Tool
from pellucid.text.responses.content import MATCH_SECONDS, searched
from pellucid.text.responses.deltas import ContentText, ReasoningText, ResponseDelta, merged
from pellucid.text.responses.template import (
    Delimiter,
    ResponseField,
    ResponseTemplate,
    literal_delimiter,
)
from pellucid.text.responses.tool_calls import ToolCallReader, ToolCalls, tool_call_reader

# Of text that is read already: patterns may look behind
_KEPT_CHARS = 1024


@dataclass(frozen=True)
class _Found:
    """A delimiter in the text."""

    start: int
    end: int
    opens: ResponseField | None  # None: it closes a region, or is dropped
    drops: bool
    captures: Mapping[str, str]


@dataclass(frozen=True)
class _Awaited:
    """The delimiters that count in a region.

    Attributes:
        delimiters: each with what it opens, and whether it is dropped.
        beginning: finds where any of them could begin; None if that is not known.
    """

    delimiters: tuple[tuple[Delimiter, ResponseField | None, bool], ...]
    beginning: re.Pattern[str] | None


class ResponseParser:
    """Reads one answer. However its text is split into pieces, the joined deltas are the same.

    Text that may be the beginning of a delimiter is held back until it is certain. White space around
    reasoning and content is left out where the template says so.

    Args:
        template: what the text means; None: all of it is content.
        prompt: the end of the prompt as text, special tokens included: the chat template may have opened
            or closed a field already.
        tools: those that the model was offered; without any, nothing is a tool call.
        special_tokens: texts that are left out where they are no delimiter.
    """

    def __init__(
        self,
        template: ResponseTemplate | None,
        prompt: str = "",
        tools: Sequence[Tool] | None = None,
        special_tokens: Sequence[str] = (),
    ) -> None:
        self._template = template
        self._calls = ToolCalls(tools or ())
        self._fields: tuple[ResponseField, ...] = ()
        self._implicit: ResponseField | None = None
        if template is not None:
            self._fields = tuple(
                field for field in template.fields if tools or field.kind != "tool_calls"
            )
            self._implicit = template.implicit
        self._dropped = literal_delimiter(list(special_tokens)) if special_tokens else None
        self._has_literals_alone = all(
            delimiter is None or delimiter.literals is not None
            for field in self._fields
            for delimiter in (field.open, field.close)
        )
        self._texts = {"content": _Text(ContentText), "reasoning": _Text(ReasoningText)}
        self._outside: list[str] = []  # text that no field takes, while no field was found
        self._found_any = False
        self._buffer = ""
        self._position = 0
        self._prompt_end = 0  # in the buffer
        self._field = self._implicit
        self._reader: ToolCallReader | None = None
        self._awaited = self._find_awaited()
        if template is not None:
            self._read_prompt(template, prompt)

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, to which stop strings do not apply."""
        return self._field is not None and self._field.kind == "reasoning"

    def push(self, text: str) -> list[ResponseDelta]:
        """Takes the next piece of the answer; returns what it adds to the message for certain."""
        if self._template is None:
            return [ContentText(text)] if text else []
        if self._continues_region(text):
            assert self._field is not None
            return self._texts[self._field.kind].add(text, self._field)
        self._buffer += text
        return merged(self._read(at_end=False))

    def _continues_region(self, text: str) -> bool:
        """Whether text continues reasoning or content, and no delimiter can begin in it, as with most tokens.

        Such text stays out of the buffer, because only patterns look behind.
        """
        return (
            self._has_literals_alone
            and self._field is not None
            and self._reader is None
            and self._position == len(self._buffer)
            and self._awaited.beginning is not None
            and not self._awaited.beginning.search(text)
        )

    def flush(self) -> list[ResponseDelta]:
        """The answer has ended. Called once."""
        if self._template is None:
            return []
        deltas = self._read(at_end=True)
        deltas += self._end_region(closed=False)
        if not self._found_any and (outside := "".join(self._outside).strip()):
            deltas.append(ContentText(outside))
        return merged(deltas)

    def _read_prompt(self, template: ResponseTemplate, prompt: str) -> None:
        """Takes over the state in which the prompt ends; what it says is no part of the answer."""
        start = _end_of_last(template.start, prompt)
        if start is None or start == len(prompt):
            return
        self._buffer = prompt[start:]
        # The prompt may end within a delimiter, which is not read yet.
        self._prompt_end = len(self._buffer)
        self._read(at_end=False)

    def _read(self, at_end: bool) -> list[ResponseDelta]:
        deltas: list[ResponseDelta] = []
        num_empty = 0  # delimiters without a character, one after the other
        while True:
            found, certain = self._find(at_end)
            until = certain if found is None else found.start
            is_last = found is None
            if found is not None and found.end == self._position:
                num_empty += 1
                if num_empty > 2:  # they open and close each other for ever
                    found, until = None, min(self._position + 1, len(self._buffer))
                    is_last = until == self._position
            if until > self._position:
                num_empty = 0
                if self._add_until(until, deltas):
                    deltas += self._end_region(closed=True)
                    continue
            if is_last:
                break
            if found is not None:
                self._position = found.end
                if not found.drops:
                    deltas += self._end_region(closed=True)
                if found.opens is not None:
                    opening = self._buffer[found.start : found.end]
                    self._begin_region(found.opens, opening, found.captures)
        self._cut_buffer()
        return deltas

    def _find(self, at_end: bool) -> tuple[_Found | None, int]:
        """The first delimiter that is certain, and up to where text is.

        Of those that start together the longest counts, of equals the one that opens a field.
        """
        certain = len(self._buffer)
        beginning = self._awaited.beginning
        if beginning is not None and not beginning.search(self._buffer, self._position):
            return None, certain
        best: _Found | None = None
        for delimiter, opens, drops in self._awaited.delimiters:
            match = searched(delimiter.pattern, self._buffer, self._position, not at_end)
            if match is None:
                continue
            if not at_end and (match.partial or self._can_grow(delimiter, match)):
                certain = min(certain, match.start())
            captures = {name: text for name, text in match.groupdict().items() if text is not None}
            found = _Found(match.start(), match.end(), opens, drops, captures)
            if best is None or (found.start, -found.end) < (best.start, -best.end):
                best = found
        if best is not None and not at_end and best.start >= certain:
            best = None
        return best, certain

    def _find_awaited(self) -> _Awaited:
        awaited: list[tuple[Delimiter, ResponseField | None, bool]] = []
        if self._field is self._implicit:
            awaited += [(field.open, field, False) for field in self._fields if field.open]
        if self._field is not None and self._field.close is not None:
            awaited.append((self._field.close, None, False))
        if self._dropped is not None and self._reader is None:
            awaited.append((self._dropped, None, True))
        literals = [delimiter.literals for delimiter, _, _ in awaited]
        beginning = None
        if None not in literals:
            first = {literal[0] for several in literals for literal in several or ()}
            beginning = re.compile("|".join(map(re.escape, sorted(first))) or "(?!)")
        return _Awaited(tuple(awaited), beginning)

    def _can_grow(self, delimiter: Delimiter, match: "regex.Match[str]") -> bool:
        if match.end() < len(self._buffer):
            return False
        return delimiter.can_grow or match.start() == match.end()

    def _begin_region(
        self, field: ResponseField, opening: str, captures: Mapping[str, str]
    ) -> None:
        self._found_any = True
        self._field = field
        if field.kind == "tool_calls":
            self._reader = tool_call_reader(field, self._calls, opening, captures)
        self._awaited = self._find_awaited()

    def _add_until(self, until: int, deltas: list[ResponseDelta]) -> bool:
        """Adds text to the region; whether the region ends before `until`, its calls being complete."""
        text = self._buffer[self._position : until]
        num_taken = len(text)
        if self._reader is not None:
            added, num_taken = self._reader.push(text)
            deltas += added
        elif self._field is not None:
            written = self._texts[self._field.kind]
            num_of_prompt = max(0, min(self._prompt_end, until) - self._position)
            if num_of_prompt:
                written.add(text[:num_of_prompt], self._field)
                written.forget_held()
            deltas += written.add(text[num_of_prompt:], self._field)
        elif not self._found_any:
            self._outside.append(text[max(0, self._prompt_end - self._position) :])
        self._position += num_taken
        return self._position < until

    def _end_region(self, closed: bool) -> list[ResponseDelta]:
        deltas: list[ResponseDelta] = []
        if self._reader is not None:
            deltas = self._reader.end(closed)
        elif self._field is not None:
            self._texts[self._field.kind].end_region()
        self._reader = None
        self._field = self._implicit
        self._awaited = self._find_awaited()
        return deltas

    def _cut_buffer(self) -> None:
        if self._position > 4 * _KEPT_CHARS:
            num_cut = self._position - _KEPT_CHARS
            self._buffer = self._buffer[num_cut:]
            self._position = _KEPT_CHARS
            self._prompt_end -= num_cut


class _Text:
    """The reasoning or the content of an answer, which may come in several regions."""

    def __init__(self, kind: type[ReasoningText] | type[ContentText]) -> None:
        self._kind = kind
        self._is_empty = True  # the message
        self._region_is_empty = True
        self._held = ""  # white space that may be the last of the region

    def add(self, text: str, field: ResponseField) -> list[ResponseDelta]:
        text = self._held + text
        self._held = ""
        if field.strips:
            if self._region_is_empty:
                text = text.lstrip()
            shown = text.rstrip()
            self._held = text[len(shown) :]
            text = shown
        if not text:
            return []
        if self._region_is_empty and not self._is_empty:
            text = ("\n\n" if field.join is None else field.join) + text
        self._region_is_empty = self._is_empty = False
        return [self._kind(text)]

    def forget_held(self) -> None:
        self._held = ""

    def end_region(self) -> None:
        self._held = ""
        self._region_is_empty = True


def _end_of_last(delimiter: Delimiter, text: str) -> int | None:
    """Where the last match in a text ends; None if there is none."""
    if delimiter.literals is not None:
        ends = [
            text.rfind(literal) + len(literal) for literal in delimiter.literals if literal in text
        ]
        return max(ends, default=None)
    try:
        ends = [match.end() for match in delimiter.pattern.finditer(text, timeout=MATCH_SECONDS)]
    except TimeoutError:
        return None
    return ends[-1] if ends else None
