"""Generate, driven by keyboard: candidates beside the step's logits, other parameters, forks, hostile text."""

import base64
import json
import math
from typing import Any

import numpy as np
import pytest

from page.browser import patient_page, wait_until
from page.conftest import forget_events
from page.screenshots import VIEWS
from pellucid.observing import observation_budget
from support.step_gate import StepGate


def generate(page: Any, prompt: str) -> str:
    """Runs a prompt by keyboard; returns the engine's name of the request."""
    num_requests = "pellucid.store.requestsAt(Infinity).length"
    before = page.evaluate(num_requests)
    page.keyboard.press("2")
    page.locator("#run:not([disabled])").wait_for()
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(prompt)
    page.keyboard.press("Enter")
    wait_until(page, f"{num_requests} > {before} && pellucid.request.value.ledger !== null")
    page.keyboard.press("Escape")
    return page.evaluate("pellucid.request.value.req")


TOKENS = """req => {
  const request = pellucid.store.requests.get(req);
  return request.tokens.map((row) => pellucid.store.token(row));
}"""


def test_candidates_are_those_of_the_steps_logits(page: Any, server: Any) -> None:
    req = generate(page, "Once upon a time there")
    tokens = page.evaluate(TOKENS, req)
    assert len(tokens) >= 8
    for token in [token for token in tokens if token["rank"]][:12]:
        reply = server.call("GET", f"/v1/logits/{req}/{token['pos']}?logits=1&top=20").json
        logits = np.frombuffer(base64.b64decode(reply["logits_f32"]), "<f4").astype(np.float64)
        logprobs = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        assert reply["id"] == token["id"]
        final = {row[0]: row[3] for row in reply["stages"][-1]["cand"]}
        for candidate in token["cand"]:
            assert candidate["lp"] == pytest.approx(logprobs[candidate["id"]], abs=1e-6)
            if candidate["p_final"] > 0:
                assert candidate["p_final"] == pytest.approx(final[candidate["id"]], abs=1e-5)
        shown = math.fsum(math.exp(candidate["lp"]) for candidate in token["cand"])
        assert shown + token["rest_frac"] == pytest.approx(1, abs=1e-9)


def test_a_choice_that_nobody_looked_at_is_computed_again(
    page: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text of this model costs more than a small share to observe whole."""
    monkeypatch.setattr(observation_budget, "SHARE", 0.001)
    body = {"prompt": "Once upon a time", "max_tokens": 1200, "ignore_eos": True, "seed": 3}
    page.evaluate("body => pellucid.runs.start('/v1/completions', body)", body)
    wait_until(
        page, "pellucid.request.value?.ledger && pellucid.request.value.tokens.length === 1200"
    )
    page.keyboard.press("2")
    tokens = page.evaluate(TOKENS, page.evaluate("pellucid.request.value.req"))
    unseen = [token for token in tokens if not token["rank"]]
    assert unseen
    wait_until(
        page, "count => document.querySelectorAll('.t.unseen').length === count", len(unseen)
    )
    chosen = unseen[-1]
    page.evaluate("pos => (pellucid.selection.pos.value = pos)", chosen["pos"])
    page.locator(".candidates tr.chosen").wait_for()
    reply = server.call("GET", f"/v1/logits/{chosen['req']}/{chosen['pos']}?top=20").json
    names = page.locator(".candidates tbody td.text").all_inner_texts()
    assert names[:3] == [row[1].replace(" ", "␣") for row in reply["stages"][0]["cand"][:3]]
    assert f"entropy {reply['stages'][0]['ent_bits']:.2f} bit" in page.locator("#main").inner_text()


# In each frame: output tokens in the text, in the figure beside it, and of the moment that all of it is of.
WATCH_FRAMES = """() => {
  window.frames_seen = [];
  const look = () => {
    const request = pellucid.request.value;
    const text = document.querySelectorAll(".tokens .t:not(.prompt)").length;
    const unit = document.evaluate("//dt[contains(., 'in the cache')]/../dd/small", document).iterateNext();
    const said = unit?.innerText.replaceAll(",", "") ?? "";
    const [, added] = /\\+ (\\d+) − 1 tokens/.exec(said) ?? [];
    const [, whole] = /of (\\d+) tokens/.exec(said) ?? []; // within a step: not yet in the cache
    const figure = added === undefined ? Number(whole) - request?.added.prompt_tok : Number(added);
    const count = request && pellucid.store.tokenCount(request, pellucid.cursor.seq.value);
    if (text > 0) window.frames_seen.push([text, figure, count]);
    requestAnimationFrame(look);
  };
  look();
}"""


def test_text_and_figures_show_the_same_moment_in_each_frame(page: Any, server: Any) -> None:
    server.wait_until_idle()
    gate = StepGate(server.engine, 30)
    page.evaluate(WATCH_FRAMES)
    page.evaluate(
        "void pellucid.runs.start('/v1/completions', {prompt: 'Once upon a time', max_tokens: 600, ignore_eos: true})"
    )
    wait_until(page, "window.frames_seen.length > 0")  # seen while it is written
    gate.open()
    wait_until(page, "window.frames_seen.at(-1)[0] === 600")
    frames = page.evaluate("window.frames_seen")
    assert [each for each in frames if len(set(each)) > 1] == []
    assert frames[0][0] < 600


STAGES = """async ([reply, params]) => {
  const path = document.querySelector('script[type="module"]').src.replace("app.js", "state/sampling.js");
  const { samplingStages, decodeLogits } = await import(path);
  const past = { promptIds: reply.prompt_ids, outputCounts: reply.output_counts };
  const stages = samplingStages(decodeLogits(reply.logits_f32), { ...reply.params, ...params }, past);
  return stages.map(({ stage, kept, mass_frac, odds }) => ({ stage, kept, mass_frac, odds: [...odds].slice(0, 5) }));
}"""


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.4, "top_k": 40, "min_p": 0.02},
        {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 0.9, "frequency_penalty": 0.4, "top_p": 0.8},
    ],
)
def test_sliders_draw_the_stages_of_the_engine(page: Any, server: Any, params: Any) -> None:
    body = {"model": "tested", "prompt": "Once upon a time", "max_tokens": 12, "seed": 3, **params}
    body["ignore_eos"] = True
    req = server.post("/v1/completions", body).json["id"].removeprefix("cmpl-")
    for position in (6, 9, 14):
        reply = server.call("GET", f"/v1/logits/{req}/{position}?logits=1&top=5").json
        drawn = page.evaluate(STAGES, [reply, {}])
        assert [each["stage"] for each in drawn] == [each["stage"] for each in reply["stages"]]
        for ours, theirs in zip(drawn, reply["stages"], strict=True):
            assert ours["kept"] == theirs["kept"]
            assert ours["mass_frac"] == pytest.approx(theirs["mass_frac"], abs=1e-5)
            expected = {row[0]: row[3] for row in theirs["cand"]}
            for token_id, share in ours["odds"]:
                if token_id in expected:
                    assert share == pytest.approx(expected[token_id], abs=1e-5)


def test_the_funnel_is_redrawn_when_a_slider_moves(page: Any) -> None:
    generate(page, "Once upon a time there")
    page.locator(".knobs summary", has_text="other parameters").click()
    page.locator("label", has_text="top-k").last.wait_for()
    page.get_by_label("top-k").last.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".funnel small", has_text="top-k 1").wait_for()
    page.locator(".why", has_text="With these parameters").wait_for()


def test_attention_adds_up_and_is_underlined(page: Any) -> None:
    generate(page, "The old miller and the king")
    page.keyboard.press(",")
    page.locator(".read-list").wait_for()
    shares = page.locator(".read-list .number").all_inner_texts()
    total = sum(float(share.translate({ord(sign): None for sign in "<> %"})) for share in shares)
    assert total == pytest.approx(100, abs=1)
    assert page.locator(".t.read").count() > 0


def test_a_fork_continues_with_the_other_token(page: Any) -> None:
    req = generate(page, "Once upon a time there was a")
    page.get_by_role("listbox").focus()
    page.keyboard.press("Home")
    for _ in range(60):  # to a token that had a rival
        page.keyboard.press("ArrowRight")
        if page.locator("button.fork").count():
            break
    position = page.evaluate("pellucid.selection.pos.value")
    page.keyboard.press("f")
    wait_until(page, f"pellucid.request.value?.req !== {json.dumps(req)}")
    wait_until(page, "pellucid.request.value?.ledger")
    ids = page.evaluate("pellucid.request.value.added.prompt_ids")
    old = page.evaluate(TOKENS, req)
    start = old[0]["pos"]
    assert len(ids) == position + 1
    assert ids[start:-1] == [token["id"] for token in old[: position - start]]
    assert ids[-1] != old[position - start]["id"]


HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script><svg onload=alert(3)> javascript:alert(4)'


def test_hostile_text_stays_text_live_and_in_a_trace(page: Any) -> None:
    generate(page, HOSTILE)
    wait_until(page, "document.querySelectorAll('.t.prompt').length > 20")
    ids = page.evaluate("pellucid.request.value.added.prompt_ids")
    wait_until(page, "ids => ids.every((id) => pellucid.runs.textOf(id) !== '')", ids)
    wait_until(
        page,
        "text => [...document.querySelectorAll('.t.prompt')].map((e) => e.textContent).join('').includes(text)",
        HOSTILE,
    )
    assert (
        page.locator("main img, main script, main iframe, main [onerror], main [onload]").count()
        == 0
    )
    hello = page.evaluate("pellucid.store.hello")
    token = {
        "v": 1, "seq": hello["seq"] + 2, "t_us": 5, "step": 1, "ev": "tok", "req": HOSTILE, "pos": 1, "id": 7,
        "text": HOSTILE,
        "src": "target", "lp": -0.1, "p_final": 0.9, "rank": 1, "ent_bits": 0.4, "cand": [[7, HOSTILE, -0.1, 0.9]],
        "rest_frac": 0.1, "funnel": [[HOSTILE, 9, 1.0]],
    }  # fmt: skip
    added = {
        "v": 1, "seq": hello["seq"] + 1, "t_us": 4, "step": 1, "ev": "req.add", "req": HOSTILE, "prompt_tok": 1,
        "max_new_tok": 4, "prio": 0, "arrive_us": 1,
        "params": {"temp": 1, "top_k": 0, "top_p": 1, "min_p": 0, "rep": 1, "seed": 1},
    }  # fmt: skip
    lines = "\n".join(json.dumps(event) for event in (hello, added, token))
    page.route("**/*hostile*.jsonl", lambda route: route.fulfill(body=lines))
    page.evaluate("pellucid.source.open('traces/<b>hostile<i>.jsonl')")
    wait_until(page, "pellucid.source.status.value === 'ended'")
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.locator(f"main.view-{view} h2").first.wait_for()
        assert (
            page.locator("main img, main script, main iframe, header b:has-text('hostile')").count()
            == 0
        )
    assert page.locator(".recorded").inner_text() == "recorded: <b>hostile<i>"


def test_keys_may_come_faster_than_the_page_is_drawn(page: Any) -> None:
    generate(page, "Once upon a time")
    last = "pellucid.request.value.added.prompt_tok + pellucid.request.value.tokens.length - 1"
    page.evaluate("""() => {
      for (const key of [",", ",", ",", "."])
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    }""")
    assert page.evaluate("pellucid.selection.pos.value") == page.evaluate(last) - 2


def test_an_empty_page_shows_a_recorded_run_which_rests_for_those_who_want_no_motion(
    browser: Any, server: Any
) -> None:
    forget_events(server)
    page = patient_page(browser, reduced_motion="reduce")
    page.goto(server.url)
    wait_until(page, "pellucid.store.snapshotSeq >= 0")
    # It stands at the first choice, with the tokens that the model read.
    first_choice = page.locator(".first-run .why", has_text="it chooses ␣Paris")
    first_choice.wait_for()
    drawn = "document.querySelector('.first-run canvas').toDataURL()"
    still = ""
    while page.evaluate(drawn) != still:  # until it has its size and its first picture
        still = page.evaluate(drawn)
        page.wait_for_timeout(200)
    assert first_choice.count() == 1
    page.get_by_role("button", name="Play").click()
    page.locator(".first-run .why", has_text="Decode.").wait_for()
    lesson = page.get_by_role("link", name="Now you: the lesson")
    assert lesson.get_attribute("href") == "#learn"
    page.get_by_role("button", name="or a prompt of your own").click()
    wait_until(page, "document.activeElement.id === 'prompt'")
    page.close()
