"""The tables of fields: complete, true, and what the docs say."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pellucid.server.errors import ApiError
from pellucid.server.fields import FieldTable, Treatment, honoured, not_served, without_effect
from pellucid.server.protocols.tables import FIELD_TABLES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("table", FIELD_TABLES, ids=lambda table: table.title)
def test_a_table_has_each_field_once_and_honours_what_is_read(table: FieldTable[Any]) -> None:
    names = [field.name for field in table.fields]
    assert len(names) == len(set(names))
    read = {field.name for field in table.fields if field.treatment is Treatment.HONOURED}
    assert read == {field.encode_name for field in msgspec.structs.fields(table.body)}
    assert all(field.note for field in table.fields)


def test_the_docs_are_written_from_the_tables() -> None:
    script = ROOT / "docs/write_server_fields.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=60)


class Body(msgspec.Struct):
    size: int | None = None
    names: list[str] = []


TABLE = FieldTable(
    "a table",
    Body,
    (
        *honoured(size="a size", names="names"),
        *without_effect(colour="there is none"),
        *not_served(shape="send the size"),
    ),
)


@pytest.mark.parametrize(
    ("data", "message", "param"),
    [
        (b'{"shape": 1}', "shape: is not served; send the size", "shape"),
        (b'{"sise": 1}', "'sise' is not a field of this request; did you mean 'size'?", "sise"),
        (b'{"size": "1"}', "size: Expected `int | null`, got `str`", "size"),
        (b'{"names": ["a", 1]}', "names[1]: Expected `str`, got `int`", "names[1]"),
        (b"[1]", "body: Expected `object`, got `array`", None),
        (b"null", "body: Expected `object`, got `null`", None),
        (b"", "the body is not JSON", None),
        (b'{"size": NaN}', "the body is not JSON", None),
        (b'{"size": 1', "the body is not JSON", None),
        (b'{"\xff": 1}', "the body is not JSON", None),
        (b'{"size": 1} {}', "the body is not JSON", None),
        (b'{"names": ["\\ud800"]}', "the body is not JSON", None),
        (b'{"size": ' + b"[" * 100_000, "the body is not JSON", None),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    data: bytes, message: str, param: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        TABLE.decode(data, [])
    assert message in refused.value.message
    assert (refused.value.status, refused.value.param) == (400, param)


def test_what_has_no_effect_is_said() -> None:
    warnings: list[str] = []
    body = TABLE.decode(b'{"size": 2, "colour": "red", "shape": null, "other": []}', warnings)
    assert (body.size, warnings) == (2, ["colour: has no effect: there is none"])


def test_where_clients_add_fields_unknown_ones_are_said_too() -> None:
    warnings: list[str] = []
    table = FieldTable("a table", Body, (), Treatment.WITHOUT_EFFECT)
    table.decode(b'{"new": 1}', warnings)
    assert warnings == ["new: has no effect: this field is not known"]
