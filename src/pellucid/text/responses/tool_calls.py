"""Parses tool calls: from the text within a field's delimiters to the deltas of calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import regex

from pellucid.inputs.conversation import Tool
from pellucid.text.responses.content import in_type, parsed_content, parsed_value, searched
from pellucid.text.responses.deltas import (
    ContentText,
    ResponseDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from pellucid.text.responses.json_scanner import JsonScanner
from pellucid.text.responses.template import CallPaths, ResponseField

_SYNTAX = frozenset(r"\.^$*+?{}[]|()")  # of regular expressions


class ToolCalls:
    """The calls of one answer: their numbers, and the tools that there are."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._schemas = {
            tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools
        }
        self._num_calls = 0

    def start(self, name: Any, marked: bool) -> ToolCallStart | None:
        """Begins a call; None if this is no function's name.

        Args:
            marked: whether a delimiter said that a call comes. Otherwise only offered tools count.
        """
        if not isinstance(name, str) or not name or (not marked and name not in self._schemas):
            return None
        self._num_calls += 1
        return ToolCallStart(self._num_calls - 1, name)

    def argument_schema(self, name: str, argument: str) -> Any:
        """What a tool's schema says of an argument; None if nothing."""
        properties = self._schemas.get(name, {}).get("properties")
        return properties.get(argument) if isinstance(properties, Mapping) else None

    def typed(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: in_type(value, self.argument_schema(name, key)) for key, value in arguments.items()
        }


class ToolCallReader(Protocol):
    """Reads one region of text, in pieces of any size. What turns out to be no call becomes content."""

    def push(self, text: str) -> tuple[list[ResponseDelta], int]:
        """What a piece of text adds, and how many of its characters belong to the region: fewer than all if
        nothing closes the region, and its calls are complete."""
        ...

    def end(self, closed: bool) -> list[ResponseDelta]:
        """The region has ended: by its closing delimiter, or with the answer."""
        ...


def tool_call_reader(
    field: ResponseField, calls: ToolCalls, opening: str, captures: Mapping[str, str]
) -> ToolCallReader:
    """The reader for a field.

    Args:
        captures: the named groups of the pattern that opened it.
    """
    paths = field.call
    assert paths is not None
    start = _Start(calls, opening, field.close is None)
    by_capture = paths.name[0] in captures and len(paths.name) == 1
    if field.form == "json" and not field.form_args:
        base = 0 if paths.each else 1  # "content" comes before the keys of an object
        name_key = None if by_capture else _key(paths.name, base)
        arguments_key = _key(paths.arguments, base)
        if by_capture and paths.arguments == ("content",) and not paths.each:
            return _ArgumentsReader(start, captures[paths.name[0]])
        if name_key is not None and arguments_key is not None:
            return _JsonReader(start, name_key, arguments_key)
    if field.form == "xml-inline" and by_capture and paths.arguments == ("content",):
        pattern = field.form_args["tag_pattern"]
        if "(?P<value>.*?)" in pattern and not field.form_args.get("merge_duplicates"):
            return _TagReader(start, captures[paths.name[0]], field.form_args)
    return _WholeReader(start, field, paths, captures)


class _Start:
    """How a reader begins calls, and what it does with text that is none.

    Args:
        ends_itself: the region ends with its calls, since nothing closes it.
    """

    def __init__(self, calls: ToolCalls, opening: str, ends_itself: bool) -> None:
        self.calls = calls
        self.ends_itself = ends_itself
        self._is_marked = bool(opening.strip())
        self._unread = [opening]

    def hold(self, text: str) -> None:
        """This text belongs to no call yet."""
        self._unread.append(text)

    def call(self, name: Any) -> ToolCallStart | None:
        started = self.calls.start(name, self._is_marked)
        if started is not None:
            self._unread.clear()
        return started

    def content(self, after_call: bool = False) -> list[ResponseDelta]:
        """What belongs to no call, at the end of the region: all but white space and the end of a list."""
        text = "".join(self._unread)
        self._unread.clear()
        if after_call:
            text = text.lstrip(" \t\r\n,")
        return [] if text.strip() in ("", "]" if after_call else "") else [ContentText(text)]


class _JsonReader:
    """Reads an object with name and arguments, or a list of such objects."""

    def __init__(self, start: _Start, name_key: str, arguments_key: str) -> None:
        self._start = start
        self._keys = (name_key, arguments_key)
        self._scanner = JsonScanner()
        self._has_ended_call = False
        self._begin_object()

    def push(self, text: str) -> tuple[list[ResponseDelta], int]:
        events, end = self._scanner.push(text)
        deltas: list[ResponseDelta] = []
        held = 0  # offset up to which text is held or read
        for event in events:
            match event.kind:
                case "object_start":
                    self._begin_object()
                case "key":
                    self._key, self._value = event.text, ""
                case "value_part":
                    deltas += self._read_part(event.text)
                case "value_end":
                    deltas += self._end_value()
                case "object_end" if self._call is not None:
                    deltas += self._end_call(complete=True)
                    held = event.end
        if self._call is None:
            self._start.hold(text[held:end])
        if self._scanner.failed and self._call is not None:
            deltas += self._end_call(complete=False)
        if self._scanner.failed or (self._scanner.done and not self._start.ends_itself):
            self._start.hold(text[end:])
            end = len(text)
        return deltas, end

    def end(self, closed: bool) -> list[ResponseDelta]:
        ends = [] if self._call is None else self._end_call(complete=False)
        return [*ends, *self._start.content(self._has_ended_call)]

    def _begin_object(self) -> None:
        self._call: ToolCallStart | None = None
        self._key = self._value = ""
        self._arguments: list[str] = []  # that no delta has yet
        self._is_written_as_object = True
        self._has_arguments = False

    def _read_part(self, text: str) -> list[ResponseDelta]:
        name_key, arguments_key = self._keys
        if self._key == name_key and self._call is None:
            self._value += text
        elif self._key == arguments_key:
            if not self._has_arguments:
                self._has_arguments = True
                self._is_written_as_object = text[0] == "{"
            self._arguments.append(text)
            return self._give_arguments() if self._is_written_as_object else []
        return []

    def _end_value(self) -> list[ResponseDelta]:
        name_key, arguments_key = self._keys
        if self._key == name_key and self._call is None:
            self._call = self._start.call(_loaded(self._value))
            started: list[ResponseDelta] = [] if self._call is None else [self._call]
            return [*started, *self._give_arguments()] if self._is_written_as_object else started
        if self._key == arguments_key and not self._is_written_as_object:
            # Some models write the object's text as a string, or null
            value = _loaded("".join(self._arguments))
            if value is None or value == "":
                self._arguments = ["{}"]
            elif isinstance(value, str):
                self._arguments = [value]
            self._is_written_as_object = True
            return self._give_arguments()
        return []

    def _give_arguments(self) -> list[ResponseDelta]:
        if self._call is None or not self._arguments:
            return []
        text = "".join(self._arguments)
        self._arguments.clear()
        return [ToolCallArguments(self._call.index, text)]

    def _end_call(self, complete: bool) -> list[ResponseDelta]:
        assert self._call is not None
        index = self._call.index
        rest = self._give_arguments()
        if complete and not self._has_arguments:
            rest = [ToolCallArguments(index, "{}")]
        self._call = None
        self._has_ended_call = True
        return [*rest, ToolCallEnd(index, complete)]


class _NamedReader:
    """Reads the arguments of one call; the name stood in the opening delimiter."""

    def __init__(self, start: _Start, name: str) -> None:
        self._start = start
        self._name = name
        self._call: ToolCallStart | None = None
        self._has_begun = False
        self._has_arguments = False

    def _begin(self) -> list[ResponseDelta]:
        if self._has_begun:
            return []
        self._has_begun = True
        self._call = self._start.call(self._name)
        return [] if self._call is None else [self._call]


class _ArgumentsReader(_NamedReader):
    """Reads an object that is the arguments."""

    def __init__(self, start: _Start, name: str) -> None:
        super().__init__(start, name)
        self._scanner = JsonScanner()

    def push(self, text: str) -> tuple[list[ResponseDelta], int]:
        _, end = self._scanner.push(text)
        if self._scanner.failed:
            end = len(text)
        piece, rest = text[:end], text[end:]
        deltas: list[ResponseDelta] = self._begin()
        if self._call is None:
            self._start.hold(piece)
        elif piece := piece if self._has_arguments else piece.lstrip():
            self._has_arguments = True
            deltas.append(ToolCallArguments(self._call.index, piece))
        if rest and not self._start.ends_itself:
            self._start.hold(rest)
            end = len(text)
        return deltas, end

    def end(self, closed: bool) -> list[ResponseDelta]:
        deltas = self._begin()
        if self._call is None:
            return [*deltas, *self._start.content()]
        if closed and not self._has_arguments:
            deltas.append(ToolCallArguments(self._call.index, "{}"))
        complete = self._scanner.done or (closed and not self._has_arguments)
        return [*deltas, ToolCallEnd(self._call.index, complete), *self._start.content()]


class _TagReader(_NamedReader):
    """Reads tags, one for each argument.

    Searches the text only when it has another end of a tag: a value may have tens of thousands of tokens.
    """

    def __init__(self, start: _Start, name: str, args: Mapping[str, Any]) -> None:
        super().__init__(start, name)
        self._args = args
        self._pattern = regex.compile(args["tag_pattern"], regex.DOTALL)
        self._ending = literal_ending(args["tag_pattern"])
        self._pieces: list[str] = []  # of the text that no argument has yet
        self._seen = ""  # the end of that text: an ending may have begun in it
        self._can_grow = False  # a tag ends where the text ended

    def push(self, text: str) -> tuple[list[ResponseDelta], int]:
        deltas = self._begin()
        self._pieces.append(text)
        seen = self._seen + text
        self._seen = seen[len(seen) - len(self._ending) + 1 :] if self._ending else ""
        if self._call is not None and (self._can_grow or self._ending in seen):
            deltas += self._read(at_end=False)
        return deltas, len(text)

    def end(self, closed: bool) -> list[ResponseDelta]:
        deltas = self._begin()
        if self._call is None:
            self._start.hold("".join(self._pieces))
            return [*deltas, *self._start.content()]
        deltas += self._read(at_end=True)
        last = "}" if self._has_arguments else "{}"
        return [
            *deltas,
            ToolCallArguments(self._call.index, last),
            ToolCallEnd(self._call.index, closed),
        ]

    def _read(self, at_end: bool) -> list[ResponseDelta]:
        assert self._call is not None
        deltas: list[ResponseDelta] = []
        position, whole = 0, "".join(self._pieces)
        self._can_grow = False
        while (match := searched(self._pattern, whole, position)) is not None:
            if match.end() == len(whole) and not at_end:
                self._can_grow = True
                break
            position = max(match.end(), position + 1)
            key = match["key"]
            schema = self._start.calls.argument_schema(self._name, key)
            value = in_type(parsed_value(match["value"] or "", self._args), schema)
            before = ", " if self._has_arguments else "{"
            self._has_arguments = True
            text = f"{before}{_dumped(key)}: {_dumped(value)}"
            deltas.append(ToolCallArguments(self._call.index, text))
        self._pieces = [whole[position:]]
        return deltas


def literal_ending(pattern: str) -> str:
    """The characters that every match of a regular expression ends with, as far as the expression has them as they are;
    may be empty."""
    if "|" in pattern or regex.search(r"\(\?(?!P<|:)", pattern):  # alternatives, flags, looks ahead
        return ""
    start = len(pattern)
    while start and pattern[start - 1] not in _SYNTAX:
        start -= 1
    return pattern[start + 1 :] if pattern[:start].endswith("\\") else pattern[start:]


@dataclass(eq=False)
class _WholeReader:
    """Reads any form at the end of its region."""

    _start: _Start
    _field: ResponseField
    _paths: CallPaths
    _captures: Mapping[str, str]

    def __post_init__(self) -> None:
        self._pieces: list[str] = []

    def push(self, text: str) -> tuple[list[ResponseDelta], int]:
        self._pieces.append(text)
        return [], len(text)

    def end(self, closed: bool) -> list[ResponseDelta]:
        text = "".join(self._pieces)
        try:
            content = parsed_content(text, self._field.form, self._field.form_args)
        except (TimeoutError, ValueError):
            self._start.hold(text)
            return self._start.content()
        elements = content if self._paths.each and isinstance(content, list) else [content]
        deltas: list[ResponseDelta] = []
        for element in elements:
            scope = {**self._captures, "content": element}
            if self._paths.each and isinstance(element, Mapping):
                scope.update(element)
            deltas += self._call(
                _looked_up(scope, self._paths.name), _looked_up(scope, self._paths.arguments)
            )
        if not deltas:
            self._start.hold(text)
            return self._start.content()
        return deltas

    def _call(self, name: Any, arguments: Any) -> list[ResponseDelta]:
        if isinstance(arguments, str):
            arguments = _loaded(arguments)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, Mapping):
            return []
        call = self._start.call(name)
        if call is None:
            return []
        text = _dumped(self._start.calls.typed(call.name, arguments))
        return [call, ToolCallArguments(call.index, text), ToolCallEnd(call.index, True)]


def _key(path: tuple[str, ...], base: int) -> str | None:
    """The one key that a path takes from an object of the content; None for other paths."""
    if len(path) != base + 1 or (base and path[0] != "content"):
        return None
    return path[-1]


def _looked_up(scope: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        scope = scope.get(key) if isinstance(scope, Mapping) else None
    return scope


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (RecursionError, ValueError):
        return None


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
