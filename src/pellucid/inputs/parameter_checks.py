"""Checks parameter values. Errors name the field, the value and what is allowed."""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn

from msgspec import Struct

MAX_SHOWN = 200  # characters of a value in a message
# The built-in types come first: to ask an abstract class takes ten times as long
_REAL = (float, int, Real)
_INTEGRAL = (int, Integral)
MAX_TOKEN_IDS = 1 << 19  # the largest vocabularies have half as many


class Interval(Struct, frozen=True):
    """The numbers that a field allows: ends included, but for `low` if `above_low` and infinity.

    `real` and `integer` give a field's value as a float or an int.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """

    low: float
    high: float = math.inf
    above_low: bool = False

    def real(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, _REAL):
            self._refuse(name, value, "finite number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or not self._contains(number):
            self._refuse(name, value, "finite number")
        return number

    def integer(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, _INTEGRAL):
            self._refuse(name, value, "whole number")
        number = int(value)
        if not self._contains(number):
            self._refuse(name, value, "whole number")
        return number

    def _contains(self, number: float) -> bool:
        above = number > self.low if self.above_low else number >= self.low
        return above and number <= self.high

    def _refuse(self, name: str, value: object, kind: str) -> NoReturn:
        allowed = f"{'above' if self.above_low else 'of at least'} {self.low}"
        if self.high < math.inf:
            allowed += f" and at most {self.high}"
        refuse(name, value, f"a {kind} {allowed}")


TOKEN_ID = Interval(0)


class CheckedFields:
    """A frozen dataclass that checks its fields, and brings them into one form, while it is being made."""

    def _normalise(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_integers(self, intervals: Mapping[str, Interval], optional: bool = False) -> None:
        for name, interval in intervals.items():
            value = getattr(self, name)
            if value is not None or not optional:
                self._normalise(name, interval.integer(name, value))

    def _check_switches(self, *names: str) -> None:
        for name in names:
            if not isinstance(value := getattr(self, name), bool):
                refuse(name, value, "True or False")


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{name}={shown(value)}: must be {allowed}")


def shown(value: object) -> str:
    """The beginning of a value's `repr`, for a message."""
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


def check_text(text: str, name: str) -> None:
    """Raises ValueError if `text` has surrogates, which Python's strings may hold and UTF-8 not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not Unicode text: {error}") from None


# Compiled for each request: so that it takes milliseconds
MAX_STRINGS = 1000
MAX_STRING_CHARS = 20_000  # together


def checked_strings(name: str, value: Sequence[str] | None) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _elements(name, value)
    if len(strings) > MAX_STRINGS:
        raise ValueError(f"{name}: has {len(strings)} strings; at most {MAX_STRINGS} are allowed")
    for string in strings:
        if not isinstance(string, str) or not string:
            refuse(name, value, "a non-empty string or a list of them")
    if (num_chars := sum(map(len, strings))) > MAX_STRING_CHARS:
        raise ValueError(
            f"{name}: has {num_chars} characters; at most {MAX_STRING_CHARS} are allowed together"
        )
    return strings


def checked_token_ids(name: str, value: Sequence[int] | None) -> tuple[int, ...]:
    token_ids = _elements(name, value)
    check_num_token_ids(name, len(token_ids))
    return tuple(TOKEN_ID.integer(name, token_id) for token_id in token_ids)


def check_num_token_ids(name: str, count: int) -> None:
    """Raises a ValueError for more token ids than a vocabulary has, before each of them is checked."""
    if count > MAX_TOKEN_IDS:
        raise ValueError(f"{name}: has {count} token ids; at most {MAX_TOKEN_IDS} are allowed")


def _elements(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, Mapping)):
        refuse(name, value, "a list")
    try:
        return () if value is None else tuple(value)
    except TypeError:
        refuse(name, value, "a list")
