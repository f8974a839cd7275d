"""`pellucid trace record` follows a server, leaves out what was written, and begins with a snapshot."""

import threading
from pathlib import Path

import pytest

from pellucid.cli.app import run_command_line
from pellucid.event_recording import read_recording
from pellucid.traces.state import TraceState
from support.http_server import TIMEOUT, RunningServer

BODY = {"prompt": "Once upon a time, Mira", "max_tokens": 20, "ignore_eos": True}


@pytest.mark.parametrize("with_text", [False, True])
def test_a_running_server_is_recorded(
    server: RunningServer, tmp_path: Path, with_text: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recorded.jsonl.gz"
    words = ["trace", "record", str(file), "--url", server.url, "--seconds", "2"]
    recorder = threading.Thread(
        target=run_command_line, args=([*words, *["--with-text"] * with_text],)
    )
    recorder.start()
    server.wait_until(lambda: server.service.feed._readers, "the recorder")
    reply = server.post("/v1/completions", BODY).json
    recorder.join(TIMEOUT)
    assert not recorder.is_alive()
    events = list(read_recording(file))
    assert events[0]["ev"] == "snapshot"
    tokens = [event for event in events if event["ev"] == "tok"]
    assert len(tokens) == 20
    text = "".join(token["text"] for token in tokens)
    assert text == (reply["choices"][0]["text"] if with_text else "")
    request_id = reply["id"].removeprefix("cmpl-")
    assert any(request_id in str(event) for event in events) == with_text
    state = TraceState.at(events)
    assert state.is_complete and not state.requests
    assert "recorded" in capfd.readouterr().err
    server.wait_until_idle()


def test_an_address_without_a_server_is_an_error(tmp_path: Path) -> None:
    words = ["trace", "record", str(tmp_path / "x.jsonl"), "--url", "http://127.0.0.1:9"]
    assert run_command_line([*words, "--seconds", "5"]) == 2
    assert run_command_line([*words, "--seconds", "0"]) == 2
    assert run_command_line([*words, "--level", "all"]) == 2
