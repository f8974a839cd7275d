"""Events in a file: a JSON object a line (NDJSON), as docs/events.md and schema/events.v1.json say."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pellucid.event_bus import EventBus
from pellucid.events import VERSION, EventRecord, Level

MAX_LINE = 16 * 2**20  # bytes: an event of a million-token prompt is half of it


@contextmanager
def recording(bus: EventBus, path: Path, level: Level = Level.TOKEN) -> Iterator[None]:
    """Writes what `bus` carries into a file, which is replaced, until the block is left.

    Raises:
        OSError: the file cannot be written. If that fails later, the recording ends there, and a log
            line says so: an engine does not fail for want of its record.
    """
    with path.open("w", encoding="ascii") as file:

        def write(record: EventRecord) -> None:
            file.write(json.dumps(record.as_dict(), separators=(",", ":"), allow_nan=False) + "\n")

        unsubscribe = bus.subscribe(write, level)
        try:
            yield
        finally:
            unsubscribe()


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file, one by one; unknown ones and unknown fields are left as they are.

    Raises:
        ValueError: names the line that is no event of a version that can be read.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise ValueError(f"{path}: line {number} has more than {MAX_LINE} bytes")
            yield _parse(line, f"{path}: line {number}")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(event, dict) or not isinstance(event.get("ev"), str):
        raise ValueError(f"{where} is no event: it has no ev")
    if event.get("v") != VERSION:
        raise ValueError(f"{where} has v={event.get('v')!r}; {VERSION} can be read")
    return event
