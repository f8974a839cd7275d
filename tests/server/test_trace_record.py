"""`pellucid trace record` follows a server, leaves out what was written, and begins with a snapshot."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

from pellucid.cli.app import run_command_line
from pellucid.observing import event_recording
from pellucid.observing.event_recording import read_recording
from pellucid.observing.traces.state import TraceState
from support.http_server import TIMEOUT, RunningServer

# Greedily: a drawn answer may hold special tokens, which events show and the answer does not.
BODY = {
    "prompt": "Once upon a time, Mira",
    "max_tokens": 20,
    "ignore_eos": True,
    "temperature": 0,
}


@pytest.fixture
def seconds_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of a recording are over when its first request has ended, on a quick and on a busy machine."""
    open_recording = event_recording.open_recording

    def opened(path: Path) -> IO[str]:
        file = open_recording(path)
        write = file.write

        def write_line(line: str) -> int:
            written = write(line)
            if '"ev":"req.ledger"' in line:  # the last event of a request
                raise asyncio.TimeoutError
            return written

        monkeypatch.setattr(file, "write", write_line)
        return file

    monkeypatch.setattr(event_recording, "open_recording", opened)


@pytest.mark.usefixtures("seconds_of_one_request")
def test_a_running_server_is_recorded(
    server: RunningServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By two recorders at a time: one leaves out what was written."""
    with_text, without_text = tmp_path / "with.jsonl.gz", tmp_path / "without.jsonl.gz"
    common = ["--url", server.url, "--seconds", "600"]
    recorders = [
        threading.Thread(target=run_command_line, args=(["trace", "record", *words, *common],))
        for words in ([str(with_text), "--with-text"], [str(without_text)])
    ]
    for recorder in recorders:
        recorder.start()
    server.wait_until(lambda: len(server.service.feed._readers) == 2, "the recorders")
    reply = server.post("/v1/completions", BODY).json
    for recorder in recorders:
        recorder.join(TIMEOUT)
        assert not recorder.is_alive()
    answer, request_id = reply["choices"][0]["text"], reply["id"].removeprefix("cmpl-")
    for file, text, has_id in ((with_text, answer, True), (without_text, "", False)):
        events = list(read_recording(file))
        assert events[0]["ev"] == "snapshot"
        tokens = [event["text"] for event in events if event["ev"] == "tok"]
        assert len(tokens) == 20 and "".join(tokens) == text
        assert any(request_id in str(event) for event in events) == has_id
        state = TraceState()
        for event in events:
            state.apply(event)
        assert state.is_complete and not state.requests
    assert capfd.readouterr().err.count("recorded") == 2
    server.wait_until_idle()


def test_a_recording_ends_after_its_seconds(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    assert (
        run_command_line(["trace", "record", str(file), "--url", server.url, "--seconds", "1"]) == 0
    )
    assert all(event["ev"] in ("snapshot", "hello") for event in read_recording(file))
    server.wait_until_idle()


def test_a_recording_that_a_signal_ends_is_whole(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "ended.jsonl.gz"
    words = ["trace", "record", str(file), "--url", server.url]
    with subprocess.Popen(
        [sys.executable, "-m", "pellucid", *words], stderr=subprocess.PIPE, text=True
    ) as recorder:
        assert recorder.stderr is not None
        assert recorder.stderr.readline().startswith("recording ")
        server.wait_until(lambda: len(server.service.feed._readers) == 1, "the recorder")
        server.post("/v1/completions", BODY)
        server.wait_until_idle()
        recorder.send_signal(signal.SIGTERM)
        assert " events" in recorder.stderr.read()
        assert recorder.wait(TIMEOUT) == 0
    assert {"hello", "snapshot"} <= {event["ev"] for event in read_recording(file)}


def test_an_address_without_a_server_is_an_error(tmp_path: Path) -> None:
    words = ["trace", "record", str(tmp_path / "x.jsonl"), "--url", "http://127.0.0.1:9"]
    assert run_command_line([*words, "--seconds", "5"]) == 2
    assert run_command_line([*words, "--seconds", "0"]) == 2
    assert run_command_line([*words, "--level", "all"]) == 2
