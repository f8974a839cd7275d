"""Serve in Chromium: loads under both disciplines, their lanes and figures, and a request that is cancelled."""

from typing import Any

from page.browser import wait_until
from support.step_gate import StepGate


def open_serve(page: Any) -> None:
    page.keyboard.press("7")
    page.locator("main.view-serve h2").first.wait_for()
    page.locator("button.live.on").wait_for()


def test_the_same_load_under_both_disciplines(page: Any) -> None:
    open_serve(page)
    page.evaluate(
        "() => { const serve = pellucid.views.serve; serve.requests.value = 4; serve.rate.value = 60;"
        " serve.outputTok.value = 8; serve.promptTok.value = 8; serve.seats.value = 2; }"
    )
    page.keyboard.press("r")
    wait_until(page, "Boolean(pellucid.views.serve.loads.continuous?.end)")
    wait_until(page, "pellucid.views.serve.stop.value === null")
    fixed, continuous = page.evaluate(
        "['static', 'continuous'].map(name => pellucid.views.serve.loads[name])"
    )
    for key in ("promptTok", "wantedTok"):
        assert [lane[key] for lane in fixed["lanes"]] == [lane[key] for lane in continuous["lanes"]]
    # A load sent again has a cache of its own: the second discipline finds none of the first one's prompts.
    assert continuous["lanes"][0]["cachedTok"] == 0
    row = page.locator(".figures tr", has_text="whole answers")
    assert [text.split("\n")[0].rstrip("C") for text in row.locator("td").all_inner_texts()] == [
        "4 of 4",
        "4 of 4",
    ]
    page.locator(".why", has_text="On the same arrivals").wait_for()
    cells = page.locator(".token-cells canvas")
    cells.press("Home")
    cells.press("Enter")
    wait_until(page, "pellucid.selection.pos.value === 0")
    page.keyboard.press("t")
    page.locator(".twin").nth(1).wait_for()
    page.locator(".twin").first.locator("tbody tr").nth(3).wait_for()


def test_a_running_request_is_listed_and_cancelled(page: Any, server: Any) -> None:
    open_serve(page)
    server.wait_until_idle()
    gate = StepGate(server.engine, num_steps=3)  # the request does not end by itself
    page.evaluate(
        "() => { const body = {model: 'tested', prompt: 'Once', max_tokens: 400, n: 2, ignore_eos: true};"
        " window.ended = false;"
        " pellucid.api.post('/v1/completions', body).catch(() => {}).finally(() => { window.ended = true; }); }"
    )
    page.locator(".queue tbody tr").first.wait_for()
    page.keyboard.press("c")
    wait_until(page, "window.ended")
    wait_until(page, "pellucid.views.serve.queue.value.length === 0")
    gate.open()
