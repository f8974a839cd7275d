"""Recordings: what is written is read back, and files that are none are refused by line."""

import json
from pathlib import Path

import pytest

from pellucid.event_bus import EventBus
from pellucid.event_recording import MAX_LINE, read_recording, recording
from pellucid.events import EventRecord, Level, Warn
from pellucid.sampling_params import SamplingParams
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
        (b"[]", "line 2 is no event"),
        (b'{"v": 1}', "line 2 is no event"),
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
