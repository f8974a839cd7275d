"""The page survives a server that is restarted."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from page.browser import patient_page, wait_until
from support.bundled import bundled_engine
from support.http_server import running_server

BODY = {"model": "tested", "prompt": "Once upon a time", "max_tokens": 6, "ignore_eos": True}


def test_a_server_that_is_killed_and_restarted_is_found_again(browser: Any) -> None:
    page = patient_page(browser)
    port = 0
    with ThreadPoolExecutor(1) as thread:
        boots = []
        for _ in range(2):
            running = running_server(bundled_engine(), port=port)
            server = thread.submit(running.__enter__).result()
            port = server.port
            if not boots:
                page.goto(server.url)
            page.locator("button.live.on").wait_for()
            wait_until(
                page,
                "boot => pellucid.store.hello && pellucid.store.hello.boot_id !== boot",
                boots[-1] if boots else "",
            )
            server.post("/v1/completions", BODY)
            wait_until(
                page,
                "pellucid.store.requestsAt(Infinity).length === 1 && pellucid.store.steps.length >= 6",
            )
            boots.append(page.evaluate("pellucid.store.hello.boot_id"))
            if len(boots) == 2:
                the_run_before_is_a_recording(page, boots)
            thread.submit(running.__exit__, None, None, None).result()
            page.locator(".notice", has_text="does not answer").wait_for()
    assert len(set(boots)) == 2
    page.close()


def the_run_before_is_a_recording(page: Any, boots: list[str]) -> None:
    for button, boot, is_live in (
        ("show the run before", boots[0], False),
        ("show the server now", boots[1], True),
    ):
        page.get_by_role("button", name=button).click()
        shown = page.evaluate(
            "[pellucid.store.hello.boot_id, pellucid.store.requestsAt(Infinity).length,"
            " pellucid.store.steps.length >= 6, pellucid.source.isLive]"
        )
        assert shown == [boot, 1, True, is_live]
        page.get_by_text("recorded: the run before the restart").wait_for(
            state="detached" if is_live else "visible"
        )
