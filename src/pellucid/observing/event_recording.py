"""Event recordings: files with one event a line as JSON (NDJSON), by docs/events.md and
schema/events.v1.json."""

import gzip
import json
import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, Any, Literal, NoReturn, Union, get_args, get_origin

from msgspec.structs import fields

from pellucid.observing import events
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import VERSION, Event, EventRecord, Level, Part

_log = logging.getLogger(__name__)

MAY_BE_NEGATIVE = (".prio", ".won_us")  # of whole numbers: counts, ids and other times are not
_fields = cache(fields)
MAX_LINE = 16 * 2**20  # bytes: an event of a million-token prompt is half of it


@contextmanager
def recording(bus: EventBus, path: Path, level: Level = Level.TOKEN) -> Iterator[None]:
    """Writes what `bus` carries into a file, which is replaced, until the block is left.

    Raises:
        OSError: the file cannot be written. If that fails later, the recording ends there, and a log
            line says so: an engine does not fail for want of its record.
    """
    with open_recording(path) as file:

        def write(record: EventRecord) -> None:
            file.write(event_line(record.as_dict()))

        unsubscribe = bus.subscribe(write, level)
        try:
            yield
        finally:
            unsubscribe()


def open_recording(path: Path) -> IO[str]:
    """A file to write lines to, which replaces what is there. Bytes that are equal stay equal when compressed.

    Raises:
        OSError: it cannot be written.
    """
    if path.suffix != ".gz":
        return path.open("w", encoding="ascii")
    return TextIOWrapper(gzip.GzipFile(path, "wb", mtime=0), encoding="ascii")


def event_line(event: dict[str, Any]) -> str:
    """The line of an event."""
    return json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n"


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file, one by one; unknown ones and unknown fields are left as they are.

    A recording that was cut, as by a kill, ends with its last whole event, and a log line says so.

    Raises:
        ValueError: names the line that is no event, or whose fields are not those of its kind of event.
        OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: must be a file")
    opened: IO[bytes] = path.open("rb")
    with gzip.open(path) if path.suffix == ".gz" else opened as file, opened:
        number = 0
        try:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise ValueError(f"{path}: line {number} has more than {MAX_LINE} bytes")
                if number > 1 and _is_cut(line):
                    _warn_of_cut(path, number - 1)
                    return
                yield _parse(line, f"{path}: line {number}")
        except EOFError as error:
            if number == 0:
                raise ValueError(f"{path}: has no whole event: {error}") from None
            _warn_of_cut(path, number)
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: is not a gzip file: {error}") from None


def _is_cut(line: bytes) -> bool:
    """Whether a line, the last one, ends within its event."""
    if line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _warn_of_cut(path: Path, num_events: int) -> None:
    _log.warning(
        "%s: the recording was cut, as by a kill; it has %d whole events", path, num_events
    )


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(event, dict) or not isinstance(event.get("ev"), str):
        raise ValueError(f"{where} is not an event: it has no field ev")
    if event.get("v") != VERSION:
        raise ValueError(f"{where} has v={event.get('v')!r}; {VERSION} can be read")
    if (kind := _kinds().get(event["ev"])) is not None:
        _check_record(event, kind, f"{where}, {event['ev']}")
    return event


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


@cache
def _kinds() -> dict[str, type[Event]]:
    """The events of this version by their names."""
    types = (kind for kind in vars(events).values() if isinstance(kind, type))
    return {kind.ev: kind for kind in types if issubclass(kind, Event) and kind is not Event}


def _check_record(record: Any, kind: Any, where: str) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{where} is not an object")
    for field in _fields(kind):
        name = field.encode_name
        if name in record:
            if record[name] is None:  # what is not known is left out
                _refuse(None, f"{where}.{name}")
            _check(record[name], field.type, f"{where}.{name}")
        elif field.required:
            raise ValueError(f"{where} has no {name}")


def _check(value: Any, hint: Any, where: str) -> None:
    """Raises ValueError if a value read from JSON is not of a field's type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [each for each in arguments if each is not NoneType]
        if value is None and NoneType in arguments:
            return
        if len(kinds) == 1:
            _check(value, kinds[0], where)
        elif type(value) not in kinds:
            _refuse(value, where)
    elif origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where}={value!r}: must be one of {', '.join(map(str, arguments))}")
    elif origin is tuple:
        if not isinstance(value, list):
            _refuse(value, where)
        items = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
        if len(items) != len(value):
            raise ValueError(f"{where}={value!r}: must have {len(items)} items")
        for index, (item, item_hint) in enumerate(zip(value, items, strict=True)):
            _check(item, item_hint, f"{where}[{index}]")
    elif issubclass(hint, Part):
        _check_record(value, hint, where)
    elif hint is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        is_negative = is_whole and value < 0 and not where.endswith(MAY_BE_NEGATIVE)
        if not is_whole or abs(value) >= 2**64 or is_negative:
            _refuse(value, where)
    elif hint is float:
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) >= 2.0**1000:
            _refuse(value, where)
    elif not isinstance(value, hint):
        _refuse(value, where)


def _refuse(value: Any, where: str) -> NoReturn:
    shown = repr(value)
    raise ValueError(f"{where}={shown[:60]}: is not a value of this field")
