"""Writes docs/server-fields.md from the server's tables of fields.

python docs/write_server_fields.py            writes
python docs/write_server_fields.py --check    fails if it would write something else
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def page(tables: Sequence[FieldTable[Any]]) -> str:
    sections = [HEADER.strip()]
    for table in tables:
        sections.append(f"## {table.title}")
        for treatment in Treatment:
            rows = [
                f"| `{field.name}` | {note(field)} |"
                for field in table.fields
                if field.treatment is treatment
            ]
            if rows:
                sections.append("\n".join([f"| {treatment.value} | |", "|---|---|", *rows]))
        sections.append(UNKNOWN[table.unknown])
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(FIELD_TABLES)))
