"""The page survives a server that is restarted, and no view has a serious problem of accessibility."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from page.browser import wait_until
from page.screenshots import THEMES, VIEWS, prepared_pages, show
from support.bundled import bundled_engine
from support.http_server import running_server

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
BODY = {"model": "tested", "prompt": "Once upon a time", "max_tokens": 6}


def test_a_server_that_is_killed_and_restarted_is_found_again(browser: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    page = browser.new_page()
    with ThreadPoolExecutor(1) as thread:
        boots = []
        for _ in range(2):
            running = running_server(bundled_engine(), port=port)
            server = thread.submit(running.__enter__).result()
            if not boots:
                page.goto(server.url)
            page.locator("button.live.on").wait_for(timeout=60_000)
            server.post("/v1/completions", BODY)
            wait_until(
                page,
                "boot => pellucid.store.hello && pellucid.store.hello.boot_id !== boot"
                " && pellucid.store.requests.size === 1 && pellucid.store.steps.length >= 6",
                boots[-1] if boots else "",
            )
            boots.append(page.evaluate("pellucid.store.hello.boot_id"))
            thread.submit(running.__exit__, None, None, None).result()
            page.locator(".notice", has_text="does not answer").wait_for()
    assert len(set(boots)) == 2
    page.close()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with make check-page")
def test_no_view_has_a_serious_problem_of_accessibility(page: Any, server: Any) -> None:
    """Each view as it ends, after its runs, in both themes."""
    page.emulate_media(reduced_motion="reduce")  # colours that are still changing have no contrast
    found = []
    for name, address in prepared_pages(page, server.url, list(VIEWS)):
        if page.evaluate("typeof axe") == "undefined":
            page.evaluate(AXE.read_text(encoding="utf-8"))
        for theme in THEMES:
            show(page, address, 1440, theme)
            result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            found += [
                (name, theme, each["id"], [node["target"] for node in each["nodes"]][:4])
                for each in result["violations"]
                if each["impact"] in ("serious", "critical")
            ]
    assert found == []
