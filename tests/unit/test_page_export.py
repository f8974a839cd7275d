"""The page as a folder, the bundled demonstration, and the verbs trace and page."""

import base64
import html
import http.client
import json
import re
import threading
from pathlib import Path

import pytest

from pellucid.cli.app import run_command_line
from pellucid.observing.event_recording import read_recording
from pellucid.observing.page_bundle import export_file
from pellucid.observing.page_export import export_page
from pellucid.observing.page_files import DEMO_TRACE, WEB_FOLDER
from pellucid.observing.traces.state import TraceState

DEMO = WEB_FOLDER / DEMO_TRACE


def test_the_demonstration_shows_what_it_promises_and_its_events_lead_to_its_snapshots() -> None:
    events = list(read_recording(DEMO))
    ops = {row[0] for event in events if event["ev"] == "kv" for row in event["ops"]}
    assert {"A", "F", "S", "R", "C", "H", "E"} <= ops
    assert {"preempt", "draft", "tok", "req.prefix", "req.ledger", "stat"} <= {
        event["ev"] for event in events
    }
    assert {"draft"} < {event["src"] for event in events if event["ev"] == "tok"}
    assert {event["kind"] for event in events if event["ev"] == "step"} >= {"prefill", "mixed"}
    state, num_snapshots = TraceState(), 0
    for event in events:
        if event["ev"] != "snapshot":
            state.apply(event)
            continue
        num_snapshots += 1
        assert state.seq == event["as_of_seq"]
        found = [[block, each.owners, each.hash] for block, each in sorted(state.blocks.items())]
        assert found == sorted(event["blocks"])
        states = {request["req"]: request["state"] for request in event["requests"]}
        assert {name: each.state for name, each in state.requests.items()} == states
    assert num_snapshots >= 2
    assert DEMO.stat().st_size < 60_000


def test_the_exported_page_needs_no_server_of_ours(tmp_path: Path) -> None:
    index = export_page(tmp_path / "site", None)
    text = index.read_text()
    assert f'name="pellucid-trace" content="{DEMO_TRACE}"' in text
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#x27;none&#x27;" in policy and "frame-ancestors" not in policy
    for path in re.findall(r'"\./([^"]+)"', text):
        assert (index.parent / path).is_file(), path
    assert not re.findall(r'(?:src|href)="https?:', text)
    assert (index.parent / DEMO_TRACE).read_bytes() == DEMO.read_bytes()
    # Again over what was exported, with a recording; never over other files.
    plain = tmp_path / "own.ndjson"
    plain.write_text("".join(json.dumps(event) + "\n" for event in read_recording(DEMO)))
    export_page(tmp_path / "site", plain)
    assert 'content="trace.jsonl"' in index.read_text()
    assert (index.parent / "trace.jsonl").read_text() == plain.read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        export_page(tmp_path / "other", None)
    plain.write_text("not an event\n")
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        export_page(tmp_path / "third", plain)
    assert not (tmp_path / "third").exists()
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        export_file(tmp_path / "run.html", plain)
    assert not (tmp_path / "run.html").exists()


def test_replay_and_export_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["trace", "replay", str(DEMO), "--json", "--until", "120"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["seq"] == 120 and state["is_complete"] and state["requests"] and state["blocks"]
    assert run_command_line(["trace", "replay", str(DEMO), "--speed", "1e9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20 and lines[-1].startswith("step ") and "idle; 0 blocks used" in lines[-1]
    perfetto, table = tmp_path / "trace.json", tmp_path / "steps.csv"
    words = ["trace", "export", str(DEMO), "--perfetto", str(perfetto), "--csv", str(table)]
    assert run_command_line(words) == 0
    assert json.loads(perfetto.read_text())["traceEvents"]
    assert table.read_text().startswith("step,t_us,kind")
    assert run_command_line(["trace", "export", str(DEMO)]) == 2
    assert run_command_line(["trace", "replay", str(tmp_path / "nowhere")]) == 2
    assert run_command_line(["page", "export", str(tmp_path / "site"), "--trace", str(DEMO)]) == 0
    assert (tmp_path / "site" / "trace.jsonl.gz").is_file()
    assert run_command_line(["page", "export"]) == 2
    assert run_command_line(["page", str(tmp_path / "nowhere")]) == 2
    assert run_command_line(["page", "--port", "65536"]) == 2


def test_page_serves_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.cli import page

    servers: list[page.ThreadingHTTPServer] = []

    class Noted(page.ThreadingHTTPServer):
        def serve_forever(self, poll_interval: float = 0.05) -> None:
            servers.append(self)
            super().serve_forever(poll_interval)

    monkeypatch.setattr(page, "ThreadingHTTPServer", Noted)
    thread = threading.Thread(target=run_command_line, args=(["page", "--port", "0"],))
    thread.start()
    while not servers:
        thread.join(0.01)
    connection = http.client.HTTPConnection("127.0.0.1", servers[0].server_port, timeout=30)
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), (f"/{DEMO_TRACE}", "")):
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status == 200 and reply.getheader("content-type", "").startswith(kind)
        body = reply.read()
    assert body == DEMO.read_bytes()
    servers[0].shutdown()
    thread.join(30)
    assert not thread.is_alive()


def test_one_file_has_all_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    assert run_command_line(["page", "export", str(path)]) == 0
    text = path.read_text()
    assert len(text) <= 1.5e6
    found = re.search(r'<script type="importmap">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    modules = json.loads(found[1])["imports"]
    wanted = {"pellucid/app.js"}
    for address in modules.values():
        body = base64.b64decode(address.partition(",")[2]).decode()
        wanted |= set(re.findall(r'\bfrom\s*"([^"]+)"', body)) - {","}
        assert not re.search(r'\b(from|import)\s*[("`]+\.', body)
    assert wanted <= modules.keys()
    for view in ("generate", "chat"):  # app.js imports them by name
        assert f"pellucid/views/{view}.js" in modules
    trace = base64.b64encode(DEMO.read_bytes()).decode()
    assert trace in text
    outside = re.findall(r"(?:src|href)=\"(?!data:)[^\"]*\"", text.replace(found[0], ""))
    assert outside == []


def test_the_name_of_a_recording_ends_no_script(tmp_path: Path) -> None:
    trace = tmp_path / "a<!--<script>b.jsonl.gz"
    trace.write_bytes(DEMO.read_bytes())
    export_file(tmp_path / "run.html", trace)
    text = (tmp_path / "run.html").read_text()
    assert trace.name not in text
    assert html.escape(trace.name) in text
