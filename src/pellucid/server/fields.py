"""The fields of each protocol's requests as data: honoured, accepted without effect, or refused.

Nothing is silently ignored: what has no effect is named in the reply's warnings, what would change the
answer is refused with what to do instead. docs/server-fields.md is written from these tables.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from pellucid.server.errors import refused
from pellucid.server.json_bounds import HOLDERS, check_counts, check_depth


class Treatment(Enum):
    """How the server treats a field that a client sends."""

    HONOURED = "honoured"
    WITHOUT_EFFECT = "accepted with a warning"
    REFUSED = "refused"


@dataclass(frozen=True)
class Field:
    """One field of a protocol.

    Attributes:
        name: as clients send it.
        treatment: how the server treats it.
        note: what it does here; for a refused field, what to do instead.
        neutral: values that mean no more than leaving the field out.
    """

    name: str
    treatment: Treatment
    note: str
    neutral: tuple[float, ...] = ()


def honoured(**notes: str) -> tuple[Field, ...]:
    return tuple(Field(name, Treatment.HONOURED, note) for name, note in notes.items())


def without_effect(**notes: str) -> tuple[Field, ...]:
    return tuple(Field(name, Treatment.WITHOUT_EFFECT, note) for name, note in notes.items())


def not_served(**notes: str) -> tuple[Field, ...]:
    return tuple(Field(name, Treatment.REFUSED, note) for name, note in notes.items())


def neutral_at(*values: float, **notes: str) -> tuple[Field, ...]:
    """Fields that are not served, but that clients also send with a value that changes nothing."""
    return tuple(Field(name, Treatment.REFUSED, note, values) for name, note in notes.items())


# Clients that send every field mean none by these
_NOTHING = frozenset({b"null", b'""', b"[]", b"{}", b"false"})
MAX_FIELDS = 1024  # of an object with a table
_MAX_NOTHING = max(map(len, _NOTHING))

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True)
class FieldTable(Generic[Body]):
    """All fields that a route knows.

    Attributes:
        title: of its section in the docs.
        body: the honoured fields and their types.
        fields: every field, the honoured ones included.
        unknown: treatment of other fields: refused to catch typing errors, or accepted with a warning where
            clients often add fields.
        objects: the tables of fields that are objects.
        example: a body without the model's name.
    """

    title: str
    body: type[Body]
    fields: Sequence[Field]
    unknown: Treatment = Treatment.REFUSED
    objects: "Mapping[str, FieldTable[Any]]" = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _by_name(self) -> Mapping[str, Field]:
        return {field.name: field for field in self.fields}

    def decode(self, data: bytes, warnings: list[str]) -> Body:
        """Decodes a body.

        Args:
            data: JSON.
            warnings: gets a line for each field without effect.

        Raises:
            ApiError: it is not JSON, it has too many values or levels, or a field is refused, unknown or of a
                wrong type.
        """
        check_counts(data)
        try:
            self.check(data, "", warnings)
            body = msgspec.json.decode(data, type=self.body)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$")
            param = path.strip(".`") or None
            raise refused(f"{param or 'body'}: {what}", param) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise refused(f"the body is not JSON: {error}") from None
        for name in body.__struct_fields__:
            if isinstance(value := getattr(body, name), HOLDERS):
                check_depth(value, name)
        return body

    def check(self, data: bytes | msgspec.Raw, within: str, warnings: list[str]) -> None:
        """Checks the names of an object's fields.

        Args:
            data: JSON.
            within: the name of the field that holds the object, and a dot; "" for the body.
            warnings: as in `decode`.

        Raises:
            ApiError: a field is refused or unknown.
        """
        given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if len(given) > MAX_FIELDS:
            where = within.rstrip(".") or "the body"
            raise refused(f"{where}: has {len(given)} fields; at most {MAX_FIELDS} are allowed")
        for name, raw in given.items():
            value = memoryview(raw)
            if len(value) <= _MAX_NOTHING and bytes(value) in _NOTHING:
                continue
            if (found := self._by_name.get(name)) is not None and found.neutral:
                if msgspec.json.decode(raw) in found.neutral:
                    continue
            self._check(name, within, warnings)
            if name in self.objects and bytes(value[:1]) == b"{":
                self.objects[name].check(raw, f"{within}{name}.", warnings)

    def _check(self, name: str, within: str, warnings: list[str]) -> None:
        found = self._by_name.get(name)
        treatment = self.unknown if found is None else found.treatment
        shown = f"{within}{name[:64]}"
        if treatment is Treatment.REFUSED:
            if found is not None:
                raise refused(f"{shown}: is not served; {found.note}", shown)
            near = difflib.get_close_matches(name[:64], [field.name for field in self.fields], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise refused(f"{shown!r} is not a field of this request{hint}", shown)
        if treatment is Treatment.WITHOUT_EFFECT:
            note = "this field is not known" if found is None else found.note
            warnings.append(f"{shown}: has no effect: {note}")


def warn_of_unknown_keys(
    given: Mapping[str, Any], known: Collection[str], where: str, warnings: list[str]
) -> None:
    """Adds a warning for each key of an object that is read without a table; `Warnings` has it once for each kind of
    object.

    Args:
        given: the object.
        known: the keys that are read, and those that mean nothing to an answer.
        where: the kind of object: "tools", say.
        warnings: of the call.
    """
    for key, value in given.items():
        if key not in known and value not in (None, False, "", [], {}):
            warnings.append(f"{where}: {key[:64]} has no effect")
