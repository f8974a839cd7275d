"""Speculate: a run by keyboard, its rounds and acceptance beside the events, the formula by slider."""

from collections.abc import Iterator
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import bundled_server
from pellucid.observing.events import Level
from support.http_server import RunningServer


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with drafts by prompt lookup in every step."""
    with bundled_server(speculation="ngram") as running:
        yield running


REPEATS = (
    "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on the mat."
    " The cat sat on"
)


def test_rounds_acceptance_and_speed_up_are_those_of_the_events(page: Any) -> None:
    page.keyboard.press("6")
    page.locator("#speculate-run:not([disabled])").wait_for()
    page.evaluate("text => { pellucid.views.speculate.prompt.value = text; }", REPEATS)
    page.keyboard.press("g")
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
    for label in ("v: cost to verify", "c: cost of a draft"):
        page.get_by_label(label).focus()
        page.keyboard.press("ArrowRight")  # what was measured may be too little to move the slider
        page.keyboard.press("Home")
    # Without a right draft a round brings one token, and verifying takes half a step here.
    wait_until(page, "document.querySelector('.formula-line .num').innerText.startsWith('2 times')")


def test_figures_of_a_text_with_drafts_are_those_of_its_events(
    page: Any, server: RunningServer
) -> None:
    events: list[dict[str, Any]] = []
    stop = server.engine.events.subscribe(lambda each: events.append(each.as_dict()), Level.TOKEN)
    page.keyboard.press("6")
    page.locator("#speculate-run:not([disabled])").wait_for()
    text = f"Listen. {REPEATS}"  # no block of it is in the prefix cache
    page.evaluate("text => { pellucid.views.speculate.prompt.value = text; }", text)
    page.keyboard.press("g")
    wait_until(page, "pellucid.request.value?.ledger && pellucid.request.value.drafts.length > 0")
    stop()
    req = page.evaluate("pellucid.request.value.req")
    [num_prompt] = [each["prompt_tok"] for each in events if each["ev"] == "req.add"]
    batches = [batch for each in events if each["ev"] == "step" for batch in each["batch"]]
    passed = sum(num_tokens for name, num_tokens, _ in batches if name == req)
    times = [each["t_us"] for each in events if each["ev"] == "tok"]
    assert passed > num_prompt + len(times) - 1  # wrong drafts passed as well
    page.keyboard.press("2")
    assert figure(page, "passed the model").startswith(f"{passed} ")
    mean = (times[-1] - times[0]) / (len(times) - 1)
    shown, unit = figure(page, "each token").split()
    assert float(shown) * {"µs": 1, "ms": 1000}[unit] == pytest.approx(mean, rel=0.06)


def figure(page: Any, label: str) -> str:
    """A figure below the text, with its unit."""
    fact = page.locator(".fact", has=page.locator("dt", has_text=label)).first
    text: str = fact.locator("dd").inner_text()
    return text


@pytest.mark.parametrize("drafter", ["draft model", "prompt lookup"])
def test_the_text_is_the_same_with_and_without_drafts(page: Any, drafter: str) -> None:
    page.keyboard.press("6")
    page.locator("#speculate-both:not([disabled])").wait_for()
    page.get_by_label(drafter).focus()
    page.keyboard.press("Space")
    page.get_by_label("k, drafts a round").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.get_by_label("new tokens").focus()
    page.keyboard.press("Home")
    page.locator("main").focus()
    page.keyboard.press("r")
    page.locator(".why", has_text="All 16 tokens are the same.").wait_for()
    run = page.evaluate("pellucid.views.speculate.latest")
    assert all(1 <= len(each["draft"]) <= 2 for each in run["rounds"])
    texts = page.locator(".written .text").all_inner_texts()
    assert len(texts) == 2 and texts[0] == texts[1] != ""
    arms = run["run"]["end"]["arms"]
    passes = page.locator(".figures tr", has_text="passes of the model").locator("td")
    assert [text.rstrip("C") for text in passes.all_inner_texts()] == [
        str(len(arm["tokens"])) for arm in run["run"]["arms"]
    ]
    if drafter == "draft model":
        assert arms["drafted"]["right"] > 0
        assert page.locator(".draft-rounds tbody tr").count() == min(24, len(run["rounds"]))
