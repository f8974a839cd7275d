"""Plan in Chromium: what the server estimates, as it says it, and this session's steps beside it."""

from typing import Any

from page.browser import wait_until
from page.conftest import wait_for_all_events


def open_plan(page: Any, machine: str) -> None:
    page.keyboard.press("8")
    page.locator("main.view-plan h2").first.wait_for()
    page.locator("#plan-machine").wait_for()
    page.evaluate("name => { pellucid.views.plan.machine.value = name; }", machine)
    wait_until(
        page,
        "name => Boolean(pellucid.views.plan.estimate.value)"
        " && (name === 'this') === (pellucid.views.plan.estimate.value.machine.name === 'this machine')",
        machine,
    )


def test_the_numbers_are_the_servers(page: Any, server: Any) -> None:
    open_plan(page, "h100-80g")
    page.keyboard.press("+")
    wait_until(
        page,
        "pellucid.views.plan.estimate.value.numbers.find(n => n.name === 'kv_bytes_batch').inputs.B === 16",
    )
    shown = page.evaluate("pellucid.views.plan.estimate.value.numbers")
    asked = server.get(
        "/v1/estimate?machine=h100-80g&prompt=512&output=128&batch=16&price_per_hour=1"
    )
    assert shown == asked.json["numbers"]
    fit = next(number for number in shown if number["name"] == "requests_that_fit")
    fact = page.locator(".fact", has_text="requests that fit")
    assert f"{fit['value']:,.0f}" in fact.inner_text()
    fact.locator("button.badge").click()
    page.locator(
        ".origin .formula", has_text="min(S, floor(blocks / blocks of a request))"
    ).wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    page.locator(".twin td", has_text="decode, estimated").wait_for()


def test_too_many_requests_are_seen(page: Any) -> None:
    open_plan(page, "h100-80g")
    page.evaluate(
        "() => { const plan = pellucid.views.plan;"
        " plan.shape.value = plan.estimate.value.shapes[0]; plan.batch.value = 1024;"
        " plan.prompt.value = 131072; }"
    )
    page.locator(".why.trouble", has_text="1,024 requests do not fit.").wait_for()


def test_steps_of_the_session_are_laid_over(page: Any, server: Any) -> None:
    body = {"model": "tested", "prompt": "Once", "max_tokens": 8, "ignore_eos": True}
    server.post("/v1/completions", body)
    open_plan(page, "this")
    wait_for_all_events(page, server)
    row = page.locator(".wide-table tr", has_text="decode")
    row.wait_for()
    assert int(row.locator("td").first.inner_text().rstrip("C")) >= 7
    page.locator(".why", has_text="times the formula").wait_for()
