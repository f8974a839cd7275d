"""Speculate: a run by keyboard, its rounds and acceptance beside the events, the formula by slider."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from page.browser import wait_until
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with drafts by prompt lookup in every step."""
    with ThreadPoolExecutor(1) as thread:
        running = running_server(bundled_engine(speculation="ngram"))
        yield thread.submit(running.__enter__).result()
        thread.submit(running.__exit__, None, None, None).result()


def test_rounds_acceptance_and_speed_up_are_those_of_the_events(page: Any) -> None:
    page.keyboard.press("5")
    page.locator("#speculate-run:not([disabled])").wait_for()
    page.keyboard.press("r")
    wait_until(page, "pellucid.request.value?.ledger && pellucid.request.value.drafts.length > 0")
    drafts = page.evaluate("pellucid.request.value.drafts")
    page.locator(".draft-rounds tbody tr").first.wait_for()
    newest = page.locator(".draft-rounds tbody tr").first
    assert newest.locator(".draft-chip").count() == len(drafts[-1]["draft"])
    assert newest.locator(".draft-chip.right").count() == drafts[-1]["n_right"]
    first = sum(each["n_right"] > 0 for each in drafts) / len(drafts)
    shown = page.locator(".positions:not(:has(caption)) tbody tr").first.locator("td").nth(2)
    assert float(shown.inner_text().strip("% ")) == pytest.approx(100 * first, abs=0.06)

    page.get_by_label("a: a draft is right").focus()
    page.keyboard.press("Home")
    page.get_by_label("v: cost of verifying").focus()
    page.keyboard.press("Home")
    page.get_by_label("c: cost of a draft").focus()
    page.keyboard.press("ArrowRight")  # a draft may cost too little to move the slider
    page.keyboard.press("Home")
    # Without a right draft a round brings one token, and verifying takes half a step here.
    page.locator(".formula-line .num", has_text="2").wait_for()
    assert page.locator(".formula-line .num").inner_text().startswith("2 times")
