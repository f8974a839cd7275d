"""docs/events.md names every event, every field and every block operation."""

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from pellucid.observing import events
from pellucid.observing.ledger import Part

TEXT = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
EVENTS = {
    kind.ev: kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
}
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##)", TEXT, flags=re.DOTALL | re.MULTILINE))


def test_every_event_has_a_section_and_a_level() -> None:
    assert SECTIONS.keys() == EVENTS.keys()
    for name, kind in EVENTS.items():
        assert re.search(rf"^\| `{kind.level.name}` \|.*`{name}`", TEXT, re.MULTILINE), name


@pytest.mark.parametrize("name", EVENTS)
def test_every_field_is_described(name: str) -> None:
    for field in fields(EVENTS[name]):
        described = field.name == "req" or f"`{field.encode_name}`" in SECTIONS[name]
        assert described, field.name


def test_every_part_of_the_ledger_is_defined() -> None:
    ledger = TEXT[TEXT.index("## The ledger") :]
    assert all(f"\n| {part.name.lower()} " in ledger for part in Part)
