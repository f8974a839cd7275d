"""Writes the JSON Schema of events from their types.

python docs/write_event_schema.py            writes
python docs/write_event_schema.py --check    fails if it would write something else
"""

import json
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from generated_file import write_or_check

from pellucid.observing import events

SCHEMA = Path(__file__).parents[1] / "src/pellucid/schema/events.v1.json"
COUNT = {"type": "integer", "minimum": 0}
ENVELOPE = {"v": {"const": events.VERSION}, "seq": COUNT, "t_us": COUNT, "step": COUNT}
SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean"}


def schema() -> dict[str, Any]:
    types = (kind for kind in vars(events).values() if isinstance(kind, type))
    kinds = [kind for kind in types if issubclass(kind, events.Event) and kind is not events.Event]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pellucid events, version {events.VERSION}",
        "description": "One event, a line of a recording. Readers ignore fields and events that they"
        " do not know: within a version some may be added, none changed or removed.",
        "oneOf": [{"$ref": f"#/$defs/{kind.ev}"} for kind in kinds],
        "$defs": {kind.ev: event(kind) for kind in kinds},
    }


def event(kind: type[events.Event]) -> dict[str, Any]:
    own = record(kind)
    return {
        **own,
        "properties": {**ENVELOPE, "ev": {"const": kind.ev}, **own["properties"]},
        "required": [*ENVELOPE, "ev", *own["required"]],
    }


def record(kind: type[Any]) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind)
    return {
        "type": "object",
        "properties": {field.encode_name: value(field.type) for field in fields},
        "required": [field.encode_name for field in fields if field.required],
    }


def value(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        # None is left out of an object; within a list it is null.
        present = [value(argument) for argument in arguments if argument is not NoneType]
        return present[0] if len(present) == 1 else {"anyOf": present}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": value(arguments[0])}
    if origin is tuple:
        items = [item(argument) for argument in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    return {"type": SCALARS[hint]} if hint in SCALARS else record(hint)


def item(hint: Any) -> dict[str, Any]:
    if NoneType in get_args(hint):
        return {"anyOf": [value(hint), {"type": "null"}]}
    return value(hint)


if __name__ == "__main__":
    sys.exit(write_or_check(SCHEMA, json.dumps(schema(), indent=1) + "\n"))
