"""Writes docs/server-fields.md from the server's tables of fields.

python docs/write_server_fields.py            writes
python docs/write_server_fields.py --check    fails if it would write something else
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from generated_file import write_or_check

from pellucid.server.field_tables import FIELD_TABLES
from pellucid.server.fields import Field, FieldTable, Treatment

PAGE = Path(__file__).with_name("server-fields.md")
HEADER = """\
# The server's fields

<!-- Written by docs/write_server_fields.py; do not edit. -->

How the server treats each field that a client sends. If a field is accepted without effect, the reply names it
in `warnings` and in the header `x-pellucid-warnings`. If a field is refused, the reply is a 400 that says
what to do instead. `null` is the same as leaving a field out. For fields that are not honoured,
`""`, `[]`, `{}` and `false` are the same as well.
"""
UNKNOWN = {
    Treatment.REFUSED: "Any other field is refused with the nearest known name, so typing errors are found.",
    Treatment.WITHOUT_EFFECT: "Any other field is accepted with a warning, because clients often add new ones.",
}


def note(field: Field) -> str:
    if not field.neutral:
        return field.note
    values = " and ".join(f"`{value:g}`" for value in field.neutral)
    return f"{field.note}; {values} means the same as leaving it out"


def defaults(body: type[msgspec.Struct]) -> Mapping[str, str]:
    """What each field is when it is left out, as JSON; none for a field that is then absent."""
    return {
        each.encode_name: f"`{json.dumps(each.default)}`"
        for each in msgspec.structs.fields(body)
        if isinstance(each.default, bool | int | float | str)
    }


def section(treatment: Treatment, rows: Sequence[Field], values: Mapping[str, str]) -> str:
    """The table of a treatment, with a column of defaults where a field has one."""
    lines = [f"| `{field.name}` | {note(field)} |" for field in rows]
    head = [f"| {treatment.value} | |", "|---|---|"]
    if treatment is Treatment.HONOURED and any(field.name in values for field in rows):
        lines = [
            f"{line} {values.get(field.name, '')} |"
            for line, field in zip(lines, rows, strict=True)
        ]
        head = [f"| {treatment.value} | | left out |", "|---|---|---|"]
    return "\n".join([*head, *lines])


def page(tables: Sequence[FieldTable[Any]]) -> str:
    sections = [HEADER.strip()]
    for table in tables:
        sections.append(f"## {table.title}")
        for treatment in Treatment:
            rows = [field for field in table.fields if field.treatment is treatment]
            if rows:
                sections.append(section(treatment, rows, defaults(table.body)))
        sections.append(UNKNOWN[table.unknown])
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(FIELD_TABLES)))
