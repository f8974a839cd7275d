"""Timeline: lanes by keyboard, a ledger that adds up, tables of the same data, the export beside the Python one."""

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import wait_for_all_events
from pellucid.observing.traces.perfetto import perfetto_trace


@pytest.fixture
def timeline(page: Any, server: Any) -> Any:
    # Before anything runs: Generate would look at tokens of the requests, which is work of the engine.
    page.keyboard.press("2")
    page.locator("main.view-timeline h2").first.wait_for()
    body = {"model": "tested", "prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True}
    server.post("/v1/completions", body)
    server.post("/v1/completions", {**body, "n": 2, "temperature": 0.8, "seed": 1})
    wait_for_all_events(page, server)
    assert (
        page.evaluate("pellucid.store.requestsAt(Infinity).map((each) => each.ledger !== null)")
        == [True] * 3
    )
    page.locator("main.view-timeline .ledger-sum").wait_for()
    return page


def test_the_ledger_of_the_chosen_lane_adds_up(timeline: Any) -> None:
    timeline.keyboard.press("a")  # the first request too, however long ago it ended
    canvas = timeline.locator(".view-timeline canvas").first
    canvas.focus()
    timeline.keyboard.press("Home")
    timeline.keyboard.press("Enter")
    wait_until(timeline, "pellucid.request.value.number === 0")
    ledger = timeline.evaluate("pellucid.request.value.ledger")
    cells = timeline.locator(".ledger tbody td:nth-child(2)").all_inner_texts()
    shown = [int(cell.replace(",", "")) for cell in cells]
    assert sum(shown) == ledger["total_us"]
    assert timeline.locator(".ledger-sum").inner_text().replace(",", "") == str(ledger["total_us"])
    assert timeline.locator(".changes li").count() >= 3


SPAN = "pellucid.views.timeline.chosen.value"


def test_zooming_and_panning_stay_within_what_is_kept(timeline: Any) -> None:
    timeline.locator("body").focus()
    timeline.keyboard.press("a")
    wait_until(timeline, f"{SPAN} !== null")
    whole = timeline.evaluate(SPAN)
    for key in "+++" + "[" * 15:
        timeline.keyboard.press(key)
        timeline.wait_for_timeout(20)
    closer = timeline.evaluate(SPAN)
    assert closer["from"] == pytest.approx(whole["from"])
    assert closer["to"] - closer["from"] == pytest.approx((whole["to"] - whole["from"]) / 8)
    for key in "]-----------":
        timeline.keyboard.press(key)
        timeline.wait_for_timeout(20)
    assert timeline.evaluate(SPAN) == pytest.approx(whole)
    timeline.keyboard.press("0")
    wait_until(timeline, f"{SPAN} === null")


def test_the_tables_are_those_of_the_store(timeline: Any) -> None:
    timeline.keyboard.press("a")
    timeline.keyboard.press("t")
    timeline.locator(".twin table").nth(1).wait_for()
    lanes, steps = timeline.locator(".twin table").all()
    assert lanes.locator("tbody tr").count() == timeline.evaluate(
        "pellucid.store.requestsAt(Infinity).length"
    )
    row = lanes.locator("tbody tr").first.locator("td").all_inner_texts()
    prompt = timeline.evaluate("[...pellucid.store.requests.values()][0].added.prompt_tok")
    assert (row[0], row[2], row[4], row[5]) == ("r1", "done", str(prompt), "1")
    durations = timeline.evaluate(
        "['sched_us', 'fwd_us', 'sample_us', 'emit_us']"
        ".map((name) => pellucid.store.steps.get(name, pellucid.store.steps.first))"
    )
    parts = steps.locator("tbody tr").first.locator("td").all_inner_texts()[5:]
    assert [int(part) for part in parts] == [*durations, sum(durations)]


EXPORT = """async (events) => {
  const root = document.querySelector('script[type="module"]').src;
  const { Store } = await import(root.replace("app.js", "state/store.js"));
  const { perfettoTrace } = await import(root.replace("app.js", "timeline/trace.js"));
  const store = new Store();
  store.ingest(events);
  return perfettoTrace(store);
}"""


def test_the_export_has_the_rows_of_the_commands(page: Any) -> None:
    trace = files("pellucid.web") / "traces" / "demo.jsonl.gz"
    lines = gzip.decompress(trace.read_bytes()).decode().splitlines()
    events = [event for event in map(json.loads, lines) if event["ev"] != "snapshot"]
    expected = perfetto_trace(events)
    exported = page.evaluate(EXPORT, events)
    assert exported["displayTimeUnit"] == expected["displayTimeUnit"]

    def number(text: str) -> float:
        """JavaScript writes 1.0 as 1."""
        return int(float(text)) if float(text).is_integer() else float(text)

    def in_order(rows: list[dict[str, Any]]) -> list[str]:
        as_parsed = json.loads(json.dumps(rows), parse_float=number)
        return sorted(json.dumps(row, sort_keys=True) for row in as_parsed)

    assert in_order(exported["traceEvents"]) == in_order(expected["traceEvents"])


def test_the_button_offers_the_export_as_a_file(timeline: Any) -> None:
    with timeline.expect_download() as waiting:
        timeline.keyboard.press("e")
    assert waiting.value.suggested_filename == "pellucid-perfetto.json"
    rows = json.loads(waiting.value.path().read_text())["traceEvents"]
    names = {row["name"] for row in rows}
    step = timeline.evaluate("pellucid.store.steps.get('step', pellucid.store.steps.first)")
    assert {f"step {step}", "waiting", "forward"} <= names
