"""The shell of the page: views by key and by address, the time bar, the sheet of keys, themes."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from page.browser import patient_page, wait_until
from page.conftest import wait_for_all_events
from pellucid.observing.event_recording import read_recording
from pellucid.observing.page_bundle import export_file
from pellucid.observing.page_export import export_page
from pellucid.observing.page_files import DEMO_TRACE, WEB_FOLDER
from support.step_gate import StepGate

VIEWS = ("Learn", "Generate", "Timeline", "Cache", "Compare", "Speculate", "Serve", "Plan", "Chat")


def test_each_view_opens_by_its_key(page: Any) -> None:
    for number, title in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.locator("nav a.on", has_text=title).wait_for()
        page.locator(f"main.view-{title.lower()} h2").first.wait_for()
        wait_until(page, "title => document.title === title", f"{title} · pellucid")
        wait_until(page, "hash => location.hash === hash", f"#{title.lower()}")


def test_a_key_pressed_as_soon_as_a_view_is_seen_is_heard(page: Any) -> None:
    page.evaluate("""() => {
      const press = () => document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "k", bubbles: true}));
      const seen = new MutationObserver(() => {
        if (!document.querySelector("main.view-compare h2")) return;
        seen.disconnect();
        press();
      });
      seen.observe(document.body, {childList: true, subtree: true});
    }""")
    page.keyboard.press("5")
    page.locator("main.view-compare h2").first.wait_for()
    assert page.evaluate("pellucid.views.compare.kind.value") == "kv_dtype"


def test_the_sheet_of_keys_opens_and_closes(page: Any) -> None:
    page.keyboard.press("?")
    page.locator("dialog.sheet[open]").wait_for()
    page.keyboard.press("Escape")
    wait_until(page, "!document.querySelector('dialog.sheet').open")


def test_time_stops_and_goes_on(page: Any, server: Any) -> None:
    body = {"model": "tested", "prompt": "Once", "max_tokens": 8, "ignore_eos": True}
    server.post("/v1/completions", body)
    page.locator("button.live.on").wait_for()
    wait_for_all_events(page, server)
    assert page.evaluate("pellucid.store.steps.length") >= 8
    page.keyboard.press("ArrowLeft")
    wait_until(page, "!pellucid.cursor.isLive.value")
    held = page.evaluate("pellucid.cursor.stepRow.value")
    assert held == page.evaluate("pellucid.store.steps.end") - 2
    page.keyboard.press("Home")
    wait_until(page, "pellucid.cursor.stepRow.value === pellucid.store.steps.first")
    page.keyboard.press("End")
    wait_until(page, "pellucid.cursor.isLive.value")


def test_a_reload_and_another_tab_show_what_was_before(page: Any, server: Any) -> None:
    body = {"model": "tested", "prompt": "Twice upon a time", "max_tokens": 8, "ignore_eos": True}
    name = server.post("/v1/completions", body).json["id"].removeprefix("cmpl-")
    wait_for_all_events(page, server)
    look = """name => {
      const request = pellucid.store.requests.get(`${name}/0`);
      const tokens = request?.tokens.map((row) => pellucid.store.token(row));
      return request?.ledger && [request.name, request.states.map(({ to }) => to), request.ledger, tokens];
    }"""
    before = page.evaluate(look, name)
    other = page.context.new_page()
    other.goto(server.url)
    page.reload()
    for late in (page, other):
        wait_until(late, f"name => Boolean(globalThis.pellucid && ({look})(name))", name)
        assert late.evaluate(look, name) == before


def test_a_recording_has_nothing_of_the_server_that_was_followed_before(
    page: Any, server: Any
) -> None:
    gate = StepGate(server.engine)
    body = {"model": "tested", "prompt": "Once", "max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(1) as thread:
        thread.submit(server.post, "/v1/completions", body)
        wait_until(page, "pellucid.store.requests.size === 1")
        gate.open()  # from here on events of the server come all the time
        wait_until(page, "[...pellucid.store.requests.values()][0].tokens.length > 0")
        page.evaluate("pellucid.source.open('traces/demo.jsonl.gz')")
        wait_until(page, "pellucid.source.status.value === 'ended'")
    names = page.evaluate("[...pellucid.store.requests.keys()]")
    recorded = read_recording(WEB_FOLDER / DEMO_TRACE)
    assert names == [event["req"] for event in recorded if event["ev"] == "req.add"]
    assert page.evaluate("pellucid.source.before.value") == "none"


SMALL_TEXTS = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const size = parseFloat(getComputedStyle(each).fontSize);
  const says = [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  return says && size > 0 && size < 14 && each.checkVisibility();
}).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("width", [1440, 900, 320])
def test_nothing_is_wider_than_the_window_and_no_text_is_small(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for number, title in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.locator(f"main.view-{title.lower()} h2").first.wait_for()
        page.wait_for_timeout(100)  # pictures take their width in a later frame
        wait_until(page, "width => document.documentElement.scrollWidth <= width", width)
        assert page.evaluate(SMALL_TEXTS) == []


def test_a_recording_that_was_cut_is_shown_as_far_as_it_is_whole(
    browser: Any, tmp_path: Path
) -> None:
    whole = (WEB_FOLDER / DEMO_TRACE).read_bytes()
    trace = tmp_path / "cut.jsonl.gz"
    trace.write_bytes(whole[: len(whole) // 2])
    num_events = len(list(read_recording(trace)))
    export_page(tmp_path / "page", trace)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "page")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as files, ThreadPoolExecutor(1) as thread:
        thread.submit(files.serve_forever)
        opened = patient_page(browser)
        opened.goto(f"http://127.0.0.1:{files.server_port}/")
        opened.locator(".notice", has_text=f"has {num_events} whole events").wait_for()
        assert opened.evaluate("pellucid.store.requests.size") > 0
        opened.close()
        files.shutdown()


def test_a_page_in_one_file_opens_from_a_disk(browser: Any, tmp_path: Path) -> None:
    export_file(tmp_path / "run.html", None)
    opened = patient_page(browser)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: message.type == "error" and problems.append(message.text))
    opened.goto((tmp_path / "run.html").as_uri())
    wait_until(opened, "pellucid.source.status.value === 'ended'")
    recorded = list(read_recording(WEB_FOLDER / DEMO_TRACE))
    assert opened.evaluate("pellucid.store.head.seq") == max(
        event["seq"] for event in recorded if event["ev"] != "snapshot"
    )
    for number, title in enumerate(VIEWS, 1):
        opened.keyboard.press(str(number))
        opened.locator(f"main.view-{title.lower()} h2").first.wait_for()
    opened.keyboard.press("1")
    opened.get_by_role("button", name="the first one").wait_for()
    prompt = json.loads((WEB_FOLDER / "traces/first_run.json").read_text())["prompt"]
    wait_until(opened, "count => document.querySelectorAll('.piece').length === count", len(prompt))
    assert problems == []
    opened.close()
