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
    page.keyboard.press("3")
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


def spans(page: Any) -> tuple[float, float]:
    """Of the time that is shown, which the reader has chosen."""
    span = page.evaluate(SPAN)
    return span["from"], span["to"]


def test_wheel_and_drag_change_the_time_that_is_shown(timeline: Any) -> None:
    timeline.keyboard.press("a")
    wait_until(timeline, f"{SPAN} !== null")
    box = timeline.locator(".request-lanes canvas").bounding_box()
    gutter, end = box["x"] + 48, box["x"] + box["width"] - 4
    y = box["y"] + 10

    def time_at(x: float) -> float:
        begin, until = spans(timeline)
        return begin + (x - gutter) / (end - gutter) * (until - begin)

    def is_at(x: float, moment: float) -> bool:
        """Whether a moment is at a place, to a pixel."""
        begin, until = spans(timeline)
        return abs(time_at(x) - moment) <= (until - begin) / (end - gutter)

    def changes() -> None:
        wait_until(timeline, f"span => {SPAN}.from !== span[0] || {SPAN}.to !== span[1]", before)

    # The moment under the pointer stays where it is.
    pointer = gutter + (end - gutter) / 4
    moment, before = time_at(pointer), spans(timeline)
    timeline.mouse.move(pointer, y)
    timeline.keyboard.down("Control")
    timeline.mouse.wheel(0, -600)
    timeline.keyboard.up("Control")
    changes()
    length = before[1] - before[0]
    assert spans(timeline)[1] - spans(timeline)[0] == pytest.approx(0.3012 * length, rel=1e-3)
    assert is_at(pointer, moment)

    # A drag takes the moment under the pointer with it, and is no click on a lane.
    before, chosen = spans(timeline), timeline.evaluate("pellucid.selection.req.value")
    moment = time_at(pointer)
    timeline.mouse.down()
    timeline.mouse.move(pointer - 20, y, steps=4)
    timeline.mouse.up()
    changes()
    assert is_at(pointer - 20, moment)
    assert timeline.evaluate("pellucid.selection.req.value") == chosen

    # A drag with Shift shows the time that it passes.
    before = spans(timeline)
    begin, until = time_at(pointer), time_at(pointer + 120)
    timeline.keyboard.down("Shift")
    timeline.mouse.move(pointer, y)
    timeline.mouse.down()
    timeline.mouse.move(pointer + 120, y, steps=4)
    timeline.mouse.up()
    timeline.keyboard.up("Shift")
    changes()
    assert is_at(gutter, begin)
    assert is_at(end, until)


REQUESTS = """count => {
  const { store, cursor } = pellucid;
  let { seq, t_us, step } = store.head;
  const tell = (ev, fields) => store.take({ v: 1, seq: ++seq, t_us: (t_us += 100), step, ev, ...fields });
  for (let i = 0; i < count; i++) {
    const req = `cmpl-${i}/0`;
    tell("req.add", { req, prompt_tok: 9, max_new_tok: 9, prio: 0, params: {}, arrive_us: t_us });
    if (i === count - 1) tell("req.state", { req, from: "waiting", to: "waiting", reason: "no_blocks" });
    else {
      if (i === 4321) t_us += 500_000;
      tell("req.state", { req, from: "waiting", to: "prefill", reason: "admitted" });
      step += 1;
      const times = { sched_us: 10, fwd_us: 60, sample_us: 10, emit_us: 10, idle_us: 0 };
      const bytes = { w_bytes: 0, kv_read_bytes: 0, kv_write_bytes: 0 };
      tell("step", { kind: "prefill", batch: [[req, 9, 9]], budget_tok: 64, flops: 1, ...times, ...bytes });
      tell("req.state", { req, from: "prefill", to: "done", reason: "max_tokens", finish: "length" });
    }
  }
  cursor.version.value += 1;
}"""


def test_ten_thousand_requests_scroll_and_are_found(page: Any) -> None:
    page.keyboard.press("3")
    page.evaluate(REQUESTS, 10_000)
    page.keyboard.press("a")
    canvas = page.locator(".request-lanes canvas")
    canvas.wait_for()
    assert canvas.bounding_box()["height"] < 600  # what is seen is drawn, and no more
    canvas.focus()
    spoken = page.locator(".request-lanes .spoken")
    for key, name in (("End", "r10000: waiting"), ("Home", "r1: waiting"), ("ArrowDown", "r2:")):
        page.keyboard.press(key)
        spoken.filter(has_text=name).wait_for()
    page.keyboard.press("End")
    wait_until(page, "document.querySelector('.request-lanes').scrollTop > 100_000")
    page.keyboard.press("Enter")
    wait_until(page, "pellucid.request.value.name === 'r10000'")

    page.keyboard.press("f")
    for words, found in (
        ("state:waiting", "1 of 10,000 requests"),
        ("cause:blocks", "1 of 10,000 requests"),
        (">200ms", "1 of 10,000 requests"),
        ("id:cmpl-77", "111 of 10,000 requests"),
        ("id:cmpl-77 <1ms state:done", "111 of 10,000 requests"),
        ("r4322", "1 of 10,000 requests"),
        ("nobody", "0 of 10,000 requests"),
    ):
        page.locator("#find-request").fill(words)
        page.locator(".found", has_text=found).wait_for()
    page.locator("#find-request").fill(">200")
    page.locator(".why.trouble", has_text=">200 is no duration").wait_for()
    page.locator("#find-request").fill(">200ms")
    page.keyboard.press("Escape")
    canvas.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    wait_until(page, "pellucid.request.value.name === 'r4322'")


def test_the_tables_are_those_of_the_store(timeline: Any) -> None:
    timeline.keyboard.press("a")
    timeline.keyboard.press("t")
    timeline.locator(".twin table").nth(1).wait_for()
    lanes, steps = timeline.locator(".twin table").all()
    assert lanes.locator("tbody tr").count() == timeline.evaluate(
        "pellucid.store.requestsAt(Infinity).length"
    )
    row = lanes.locator("tbody tr").first.locator("td").all_inner_texts()
    added = timeline.evaluate("[...pellucid.store.requests.values()][0].added")
    first = (f"r{added['num']}", "done", str(added["prompt_tok"]), "1")
    assert (row[0], row[2], row[4], row[5]) == first
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


@pytest.mark.parametrize("waits_us", [0, 20_000])
def test_the_export_has_the_rows_of_the_commands(page: Any, waits_us: int) -> None:
    """Of steps one after the other, and of some that overlap."""
    trace = files("pellucid.web") / "traces" / "demo.jsonl.gz"
    lines = gzip.decompress(trace.read_bytes()).decode().splitlines()
    events = [event for event in map(json.loads, lines) if event["ev"] != "snapshot"]
    for event in events:
        if event["ev"] == "step":
            event["fwd_us"] += waits_us
    expected = perfetto_trace(events)
    num_threads = sum(row["name"] == "thread_name" for row in expected["traceEvents"])
    assert (num_threads > 1) == (waits_us > 0)
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
