"""Splits the JSON text of an object, or of a list of objects, into keys and raw values, while it arrives."""

import json
from enum import Enum, auto
from typing import Literal, NamedTuple


class JsonEvent(NamedTuple):
    """What the scanner has found.

    Attributes:
        text: of a key its name, of a part of a value more of its raw text.
        end: of an object's end, the offset after it within the text that was pushed.
    """

    kind: Literal["object_start", "key", "value_part", "value_end", "object_end"]
    text: str = ""
    end: int = 0


class _State(Enum):
    BEGIN = auto()
    BETWEEN_OBJECTS = auto()
    BEFORE_KEY = auto()
    KEY = auto()
    COLON = auto()
    BEFORE_VALUE = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    END = auto()
    FAILED = auto()


class JsonScanner:
    """Follows only as much of JSON's grammar as it needs: raw values are not checked.

    Attributes:
        done: the object or list has ended.
        failed: the text is no object and no list of objects.
    """

    def __init__(self) -> None:
        self._state = _State.BEGIN
        self._in_list = False
        self._key = ""
        self._depth = 0  # of brackets within the value
        self._in_string = False
        self._escaped = False

    @property
    def done(self) -> bool:
        return self._state is _State.END

    @property
    def failed(self) -> bool:
        return self._state is _State.FAILED

    def push(self, text: str) -> tuple[list[JsonEvent], int]:
        """Takes the next piece of text.

        Returns:
            What it holds, and how many of its characters belong to the object or list.
        """
        events: list[JsonEvent] = []
        position = 0
        while position < len(text) and self._state not in (_State.END, _State.FAILED):
            if self._state is _State.VALUE:
                position = self._value(text, position, events)
            else:
                position = self._structure(text, position, events)
        return events, position

    def _structure(self, text: str, position: int, events: list[JsonEvent]) -> int:
        character = text[position]
        state = self._state
        if state is _State.KEY:
            self._key += character
            if self._ends_string(character):
                try:
                    events.append(JsonEvent("key", json.loads(self._key, strict=False)))
                    self._state = _State.COLON
                except ValueError:
                    self._state = _State.FAILED
        elif character.isspace():
            pass
        elif state is _State.BEFORE_VALUE:
            self._state, self._depth, self._in_string = _State.VALUE, 0, False
            return position
        elif character == "[" and state is _State.BEGIN:
            self._in_list = True
            self._state = _State.BETWEEN_OBJECTS
        elif character == "{" and state in (_State.BEGIN, _State.BETWEEN_OBJECTS):
            events.append(JsonEvent("object_start"))
            self._state = _State.BEFORE_KEY
        elif character == "]" and state is _State.BETWEEN_OBJECTS:
            self._state = _State.END
        elif character == '"' and state is _State.BEFORE_KEY:
            self._key = character
            self._state, self._escaped = _State.KEY, False
        elif character == ":" and state is _State.COLON:
            self._state = _State.BEFORE_VALUE
        elif character == "}" and state in (_State.BEFORE_KEY, _State.AFTER_VALUE):
            events.append(JsonEvent("object_end", end=position + 1))
            self._state = _State.BETWEEN_OBJECTS if self._in_list else _State.END
        elif character == "," and state is _State.AFTER_VALUE:
            self._state = _State.BEFORE_KEY
        elif not (character == "," and state is _State.BETWEEN_OBJECTS):
            self._state = _State.FAILED
            return position
        return position + 1

    def _value(self, text: str, start: int, events: list[JsonEvent]) -> int:
        """Reads on within a value; returns where it has come to."""
        end = len(text)
        for position in range(start, len(text)):
            character = text[position]
            if self._in_string:
                if self._ends_string(character):
                    self._in_string = False
                    if self._depth == 0:
                        end = position + 1
                        self._state = _State.AFTER_VALUE
                        break
            elif character == '"':
                self._in_string, self._escaped = True, False
            elif character in "{[":
                self._depth += 1
            elif self._depth and character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    end = position + 1
                    self._state = _State.AFTER_VALUE
                    break
            elif self._depth == 0 and (character in ",}]" or character.isspace()):
                end = position  # after a number, true, false or null
                self._state = _State.AFTER_VALUE
                break
        if end > start:
            events.append(JsonEvent("value_part", text[start:end]))
        if self._state is _State.AFTER_VALUE:
            events.append(JsonEvent("value_end"))
        return end

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            return character == '"'
        return False
