"""Learn: every step is done on a real engine, and without one from recorded runs that say so."""

import json
from typing import Any

import numpy as np

from page.browser import wait_until
from page.conftest import opened_page
from page.screenshots import VIEWS
from pellucid.observing.page_files import WEB_FOLDER
from support.http_server import RunningServer

STEPS = (
    "one-token",
    "choosing",
    "attention",
    "keys-values",
    "with-without",
    "memory",
    "speculation",
    "batching",
    "challenge",
)


ABOUT_MEANING = ("choosing", "attention")  # the recorded run of SmolLM2 comes first


def do_step(page: Any, step: str, button: str | None = None) -> None:
    """Guesses, which runs the step, and answers the check; a button is pressed after the first run."""
    page.evaluate("step => { location.hash = `#learn?step=${step}` }", step)
    page.locator(f".steps a.on[href$='{step}']").wait_for()
    # Nothing is to be computed, neither for a guess nor for the check.
    page.locator("form.phase").first.locator(".options button").nth(1).press("Enter")
    page.locator(".verdict").first.wait_for(timeout=120_000)
    if button is not None:
        page.get_by_role("button", name=button).press("Enter")
        wait_until(page, "step => pellucid.settings.lessons.value[step].isRecorded === false", step)
        page.locator(".verdict").first.wait_for()
    page.locator("form.phase").nth(1).locator(".options button").nth(1).press("Enter")
    page.get_by_role("button", name="Next step").wait_for()
    assert page.locator(".go-on a").get_attribute("href") in {f"#{view}" for view in VIEWS}
    assert page.locator(".why.trouble").count() == 0


def test_all_steps_are_done_on_this_engine(page: Any) -> None:
    page.emulate_media(reduced_motion="reduce")  # films stand at their end
    page.keyboard.press("1")
    wait_until(page, "pellucid.source.canRun")
    for step in STEPS:
        do_step(page, step, "Run it on this engine" if step in ABOUT_MEANING else None)
    page.evaluate("location.hash = '#learn?step=record'")
    page.locator(".why", has_text="All steps are done").wait_for()
    progress = page.evaluate("pellucid.settings.lessons.value")
    assert progress.keys() == set(STEPS)
    assert not any(each["isRecorded"] for each in progress.values())
    run = progress["one-token"]["result"]
    assert run["steps"][-1]["ctx"] == run["promptTok"] + len(run["output"]) - 1
    assert [step["q"] for step in run["steps"]] == [len(run["prompt"])] + [1] * 11
    for token in progress["choosing"]["result"]["tokens"]:
        assert token["candidates"][0][0] == token["text"]
        shares = [share for _, share in token["candidates"]]
        assert shares == sorted(shares, reverse=True) and sum(shares) <= 1 + 1e-3
    attention_is_the_formula(progress["attention"]["result"])
    cache = progress["with-without"]["result"]
    drafts = progress["speculation"]["result"]
    assert drafts["isSame"] and drafts["extra"] == 1 and drafts["passes"]["plain"] == 40
    assert cache["naive"]["pass"] == 5 * 32 + 32 * 31 // 2 and cache["cached"]["pass"] == 36


def attention_is_the_formula(head: Any) -> None:
    """softmax(scale · Q·Kᵀ) gives the weights, row by row, as far as three digits of each number allow."""
    queries, keys = np.array(head["queries"]), np.array(head["keys"])
    for row, weights in enumerate(head["weights"]):
        scores = np.exp(head["scale"] * keys[: row + 1] @ queries[row])
        assert np.allclose(weights, scores / scores.sum(), atol=0.02)


def test_the_recorded_head_is_the_formula_and_looks_at_the_cat() -> None:
    recorded = json.loads((WEB_FOLDER / "traces/lessons.json").read_text())["attention"]["result"]
    attention_is_the_formula(recorded)
    newest = recorded["weights"][-1]
    assert recorded["tokens"][int(np.argmax(newest))] == " cat" and newest[1] > 0.5


def test_a_film_plays_and_its_scrubber_goes_to_any_token(page: Any) -> None:
    page.keyboard.press("1")
    page.evaluate("location.hash = '#learn?step=choosing'")
    page.get_by_role("button", name="delicious").click()
    said = page.locator(".film output")
    said.filter(has_text="token 0 of 6").wait_for()
    # What it shows is said when it has been seen.
    assert page.locator(".verdict").count() == 0
    scrubber = page.get_by_label("place in the run")
    scrubber.press("End")
    said.filter(has_text="token 6 of 6").wait_for()
    page.locator(".verdict", has_text="␣Paris").wait_for()
    scrubber.press("Home")
    scrubber.press("ArrowRight")
    said.filter(has_text="token 1 of 6").wait_for()
    assert page.locator(".said-so-far").inner_text() == "The capital of France is Paris"


def test_without_an_engine_recorded_runs_are_used_and_named(page: Any) -> None:
    page.evaluate("pellucid.source.open('traces/demo.jsonl.gz')")
    wait_until(page, "pellucid.source.status.value === 'ended'")
    page.keyboard.press("1")
    # The bundled model knows few words.
    page.emulate_media(reduced_motion="reduce")
    for step, engine in (("one-token", "pellucid-5m"), ("choosing", "smollm2-135m-instruct")):
        do_step(page, step)
        assert page.locator(".recorded-badge", has_text=f"recorded: {engine}").count() == 1
    choice = page.evaluate("pellucid.settings.lessons.value")["choosing"]
    assert choice["result"]["tokens"][0]["candidates"][0][0] == " Paris"


def test_a_guess_waits_for_the_recorded_runs(page: Any) -> None:
    asked: list[Any] = []
    page.route("**/traces/lessons.json", lambda route: asked.append(route))
    page.evaluate("pellucid.source.open('traces/demo.jsonl.gz')")
    wait_until(page, "pellucid.source.status.value === 'ended'")
    page.keyboard.press("1")
    page.locator("form.phase .options button").nth(1).press("Enter")
    page.get_by_role("button", name="running…").wait_for()
    while not asked:
        page.wait_for_timeout(20)
    asked[0].continue_()
    page.locator(".recorded-badge").wait_for()


def test_a_guess_without_engine_and_recorded_run_says_so(browser: Any, server: Any) -> None:
    with opened_page(browser, server, may_fail="Failed to load resource") as page:
        page.route("**/traces/lessons.json", lambda route: route.abort())
        page.evaluate("pellucid.source.open('traces/demo.jsonl.gz')")
        wait_until(page, "pellucid.source.status.value === 'ended'")
        page.keyboard.press("1")
        page.locator("form.phase .options button").nth(1).press("Enter")
        page.locator(".why.trouble", has_text="no engine here, and no recorded run").wait_for()


def test_a_typed_text_is_shown_in_the_tokens_of_the_model(page: Any, server: RunningServer) -> None:
    page.keyboard.press("1")
    box = page.get_by_label("Type anything")
    for text in ("The cat sat, yes 日本!", "   ", ""):
        box.fill(text)
        reply = server.post("/tokenize", {"content": text, "return_token_strs": True})
        ids = [str(token) for token in reply.json["tokens"]]
        shown = "[...document.querySelectorAll('.piece sub')].map((each) => each.textContent)"
        wait_until(
            page, f"ids => JSON.stringify({shown}) === ids", json.dumps(ids, separators=(",", ":"))
        )
    vocabulary = server.engine.model.config.vocab_size
    page.locator(".pieces", has_text=f"This model knows {vocabulary:,} of them").wait_for()
