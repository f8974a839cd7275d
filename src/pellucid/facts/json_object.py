"""Typed access to the keys of a JSON object from an untrusted file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_MAX_TOKEN_IDS = 10_000
MAX_INTEGER = 2**31 - 1
MAX_NUMBER = 1e12
_MAX_SHOWN = 120  # characters of a value in a message

_REQUIRED: Any = object()


@dataclass(frozen=True)
class JsonObject:
    """The keys of a JSON object. Errors name the file, the key, the value and what is allowed.

    A missing key stands for its value in `defaults`, or else for the one that the reader takes; without
    either, the key must be there. Readers called `optional_*` also take null, and return None for it.

    Args:
        path: the file, for messages.
        name: the dotted keys that lead to this object inside the file; empty at the top.
        defaults: what missing keys stand for.
    """

    path: Path
    values: Mapping[str, Any]
    name: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def with_values(self, **values: Any) -> "JsonObject":
        """The same object with other values of some keys."""
        return replace(self, values={**self.values, **values})

    def without(self, *keys: str) -> "JsonObject":
        """The same object without some keys, and without their defaults."""
        return replace(
            self, values=_without(self.values, keys), defaults=_without(self.defaults, keys)
        )

    def without_values(self, *keys: str) -> "JsonObject":
        """The same object, in which some keys are missing."""
        return replace(self, values=_without(self.values, keys))

    def error(self, key: str, allowed: str) -> ValueError:
        """The error for `key`, to be raised."""
        if key in self.values:
            got = f"={_shown(self.values[key])}"
        elif key in self.defaults:
            got = f" is missing and stands for {_shown(self.defaults[key])}"
        else:
            got = " is missing"
        return ValueError(f"{self.path}: {self._dotted(key)}{got}: {allowed}")

    def get(self, key: str) -> Any:
        """The value of a key, unchecked; None where it is missing and stands for nothing."""
        return self.values.get(key, self.defaults.get(key))

    def integer(
        self, key: str, default: int = _REQUIRED, *, minimum: int = 1, maximum: int = MAX_INTEGER
    ) -> int:
        """A whole number from `minimum` to `maximum`."""
        value = self._value(key, default)
        if not _is_integer(value) or not minimum <= value <= maximum:
            raise self.error(key, f"must be a whole number from {minimum} to {maximum}")
        return int(value)

    def optional_integer(self, key: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, or null."""
        return None if self._value(key, default) is None else self.integer(key, default or 0)

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """A number above 0, at most `MAX_NUMBER`."""
        value = self._value(key, default)
        if not _is_positive_number(value):
            raise self.error(key, f"must be a number above 0, at most {MAX_NUMBER:g}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A number above 0, at most `MAX_NUMBER`, or null."""
        return None if self._value(key, None) is None else self.number(key)

    def nonzero_number(self, key: str) -> float | None:
        """A number above 0, at most `MAX_NUMBER`; null, 0 or a missing key is none."""
        value = self._value(key, None)
        return None if _is_zero(value) else self.optional_number(key)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` numbers above 0, at most `MAX_NUMBER`."""
        values = self._value(key, _REQUIRED)
        if (
            not isinstance(values, list)
            or len(values) != length
            or not all(map(_is_positive_number, values))
        ):
            raise self.error(
                key, f"must be a list of {length} numbers above 0, at most {MAX_NUMBER:g}"
            )
        return tuple(map(float, values))

    def optional_flags(self, key: str, length: int) -> tuple[bool, ...] | None:
        """A list of `length` times 0 or 1, or null."""
        values = self._value(key, None)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != length or not all(map(_is_flag, values)):
            raise self.error(key, f"must be a list of {length} times 0 or 1")
        return tuple(map(bool, values))

    def boolean(self, key: str, default: bool = _REQUIRED) -> bool:
        """true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def string(self, key: str, default: str = _REQUIRED) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string")
        return value

    def optional_strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or null."""
        value = self._value(key, None)
        if value is None:
            return None
        # As a set of types: lists of tokens are long.
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            raise self.error(key, "must be a list of strings")
        return tuple(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or null for none."""
        value = self._value(key, None)
        items = [] if value is None else value if isinstance(value, list) else [value]
        if len(items) > _MAX_TOKEN_IDS or not all(
            _is_integer(item) and 0 <= item <= MAX_INTEGER for item in items
        ):
            raise self.error(
                key, f"must be a token id, at least 0, or a list of up to {_MAX_TOKEN_IDS} of them"
            )
        return tuple(items)

    def optional_object(self, key: str) -> "JsonObject | None":
        """A nested object, or null."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return JsonObject(self.path, value, self._dotted(key))

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key, self.defaults.get(key, default))
        if value is _REQUIRED:
            raise self.error(key, "it is required")
        return value

    def _dotted(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def _without(values: Mapping[str, Any], keys: tuple[str, ...]) -> Mapping[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."


def _is_flag(value: Any) -> bool:
    return isinstance(value, int) and value in (0, 1)


def _is_zero(value: Any) -> bool:
    return (_is_integer(value) or isinstance(value, float)) and value == 0


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive_number(value: Any) -> bool:
    return (_is_integer(value) or isinstance(value, float)) and 0 < value <= MAX_NUMBER
