"""Recordings: written and read back; the errors for damaged files name the line."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pellucid.cli.explanation import explain_request
from pellucid.cli.explanation_report import print_explanation
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.observing.event_recording import (
    MAX_LINE,
    event_line,
    open_recording,
    read_recording,
    recording,
)
from pellucid.observing.events import EventRecord, Level, Warn
from support.command_line import CommandLine
from support.fake_model import fake_engine


def test_a_recording_is_what_was_heard(tmp_path: Path) -> None:
    engine, heard = fake_engine(), []
    engine.events.subscribe(lambda record: heard.append(record.as_dict()), Level.TOKEN)
    with recording(engine.events, tmp_path / "events.ndjson"):
        heard.clear()
        engine.add_request("hello", SamplingParams(max_tokens=5, ignore_eos=True))
        while engine.has_unfinished_requests:
            engine.step()
    engine.add_request("after", SamplingParams(max_tokens=1))
    hello, *events = read_recording(tmp_path / "events.ndjson")
    assert hello["ev"] == "hello"
    assert events == json.loads(json.dumps(heard[: len(events)]))
    assert [event["ev"] for event in events[-2:]] == ["step", "req.ledger"]


def test_a_recording_that_cannot_be_written_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus()
    with recording(bus, tmp_path / "events.ndjson"):

        def full(record: EventRecord) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(EventRecord, "as_dict", full)
        bus.emit(Warn("a", "something"))
        bus.emit(Warn("b", "something"))
        assert not bus.active
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b"\xff\xfe", "line 2 is not JSON"),
        (b"[]", "line 2 is not an event"),
        (b'{"v": 1}', "line 2 is not an event"),
        (b'{"v": 2, "ev": "tok"}', "line 2 has v=2; 1 can be read"),
        (b'{"v": 1, "ev": "' + b"x" * MAX_LINE + b'"}', "line 2 has more than"),
    ],
    ids=range(7),
)
def test_a_file_that_is_no_recording(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"v": 1, "ev": "new", "x": 1}\n' + line + b"\n")
    events = read_recording(path)
    assert next(events) == {"v": 1, "ev": "new", "x": 1}
    with pytest.raises(ValueError, match=message):
        next(events)


@pytest.mark.parametrize("name", ["events.ndjson", "events.ndjson.gz"])
def test_a_recording_that_was_cut_has_its_whole_events(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = recorded(tmp_path)
    path = tmp_path / name
    with open_recording(path) as file:
        file.writelines(event_line(event) for event in events)
    whole = path.read_bytes()
    counts = []
    for length in range(1, len(whole), 19):
        path.write_bytes(whole[:length])
        caplog.clear()
        found = found_in(path)
        if isinstance(found, str):  # the first event is not whole
            assert not counts and re.search("no whole event|not JSON|not a gzip file", found)
            continue
        counts.append(len(found))
        assert found == events[: len(found)]
        is_between = name.endswith("json") and len(whole[:length].splitlines()) == len(found)
        assert is_between or f"it has {len(found)} whole events" in caplog.text
    assert counts == sorted(counts) and counts[-1] >= len(events) - 1


def found_in(path: Path) -> list[dict[str, Any]] | str:
    """The events, or why there are none."""
    try:
        return list(read_recording(path))
    except ValueError as error:
        return str(error)


def recorded(tmp_path: Path) -> list[dict[str, object]]:
    """The events of a small run."""
    engine, path = fake_engine(), tmp_path / "run.ndjson"
    with recording(engine.events, path):
        engine.add_request("hello", SamplingParams(max_tokens=2, ignore_eos=True))
        while engine.has_unfinished_requests:
            engine.step()
    return [json.loads(line) for line in path.read_text().splitlines()]


WRONG = (None, "x", [], 1e400, [[1, "x"]])  # in turn


def test_an_edited_recording_is_explained_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every field of every kind of event is left out and replaced by what it cannot be."""
    wrong = itertools.cycle(WRONG)
    events = recorded(tmp_path)
    path = tmp_path / "edited.ndjson"
    explained, refused = [], {}
    for index in {event["ev"]: index for index, event in enumerate(events)}.values():
        for name in events[index]:
            for value in ("left out", -1, 2**64, *itertools.islice(wrong, 1)):
                edited = {**events[index], name: value}
                if value == "left out":
                    del edited[name]
                lines = [*events[:index], edited, *events[index + 1 :]]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
                try:
                    print_explanation(explain_request(read_recording(path)))
                    explained.append((name, value))
                except ValueError as error:
                    refused[str(edited.get("ev")), name, str(value)] = str(error)
    capsys.readouterr()
    assert explained and refused
    assert all(message.startswith((f"{path}: line ", "no request")) for message in refused.values())
    for ev, name in (("req.add", "prompt_tok"), ("req.ledger", "total_us"), ("hello", "kv")):
        assert refused[ev, name, "left out"].endswith(f", {ev} has no {name}")
        assert f", {ev}.{name}" in refused[ev, name, str(2**64)]
        assert (
            f", {ev}.{name}" in refused[ev, name, "-1"]
            or "not an object" in refused[ev, name, "-1"]
        )


def test_nothing_in_a_recording_divides_by_zero(tmp_path: Path, pellucid: CommandLine) -> None:
    """Every number is 0."""

    def zeroed(value: object) -> object:
        if isinstance(value, dict):
            return {name: each if name == "v" else zeroed(each) for name, each in value.items()}
        if isinstance(value, list):
            return [zeroed(each) for each in value]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return 0 if is_number else value

    path = tmp_path / "zeros.ndjson"
    path.write_text("".join(json.dumps(zeroed(event)) + "\n" for event in recorded(tmp_path)))
    ran = pellucid("explain", "--events", str(path))
    assert (ran.status, ran.err) == (0, "")


def test_a_directory_is_no_recording(tmp_path: Path, pellucid: CommandLine) -> None:
    ran = pellucid("explain", "--events", str(tmp_path))
    assert (ran.status, ran.err) == (2, f"error: {tmp_path}: must be a file\n")
