"""A pool that is too small, and a fork while a text is written: what happens to blocks is seen and explained."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import bundled_server, wait_for_all_events
from support.http_server import RunningServer
from support.step_gate import StepGate

BLOCK_TOKENS = 16
NUM_BLOCKS = 12
TOKENS = 170  # of a long text


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with a pool in which one long text fits, and two do not."""
    with bundled_server(
        block_size=BLOCK_TOKENS,
        num_kv_blocks=NUM_BLOCKS,
        max_model_len=NUM_BLOCKS * BLOCK_TOKENS,
    ) as running:
        yield running


def write(server: RunningServer, prompt: str, tokens: int) -> str:
    body = {"model": "tested", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    reply = server.post("/v1/completions", {**body, "ignore_eos": True})
    assert reply.status == 200
    return reply.json["choices"][0]["text"]


def test_a_preemption_is_seen_and_explained(page: Any, server: RunningServer) -> None:
    prompts = ("Once upon a time", "The old miller and the king")
    alone = [write(server, prompt, TOKENS) for prompt in prompts]
    server.wait_until_idle()
    gate = StepGate(server.engine)
    with ThreadPoolExecutor(2) as threads:
        together = [threads.submit(write, server, prompt, TOKENS) for prompt in prompts]
        server.wait_until(lambda: len(server.engine.unfinished_request_ids) == 2, "both requests")
        gate.open()
        assert [each.result() for each in together] == alone
    page.keyboard.press("3")
    wait_until(
        page, "[...pellucid.store.requests.values()].filter((each) => each.ledger).length >= 4"
    )
    wait_for_all_events(page, server)
    preempted = page.evaluate(
        "[...pellucid.store.requests.values()].find((each) => each.preempts.length > 0).req"
    )
    lane = page.evaluate(
        "req => pellucid.store.requestsAt(Infinity).findIndex((each) => each.req === req)",
        preempted,
    )
    page.locator("main.view-timeline .ledger-sum").wait_for()
    page.locator("main").focus()
    page.keyboard.press("a")
    page.locator(".view-timeline canvas").first.focus()
    page.keyboard.press("Home")
    for _ in range(lane):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait_until(page, f"pellucid.request.value.req === '{preempted}'")
    page.locator(".ledger td", has_text="preempted").first.wait_for()
    page.locator(".changes li", has_text="another request took blocks from it").first.wait_for()
    page.locator(".why.trouble", has_text="Its blocks went to").wait_for()


def test_a_fork_of_a_running_text_makes_one_copy(page: Any, server: RunningServer) -> None:
    server.wait_until_idle()
    gate = StepGate(server.engine, num_steps=25)  # the text does not end before it is forked
    page.keyboard.press("2")
    page.locator("#run:not([disabled])").wait_for()
    page.evaluate(
        "() => { const state = pellucid.views.generate; state.max_tokens.value = 100;"
        " state.temperature.value = 0; pellucid.runs.start('/v1/completions',"
        " {prompt: 'Once upon a time', max_tokens: 100, temperature: 0, ignore_eos: true}); }"
    )
    wait_until(page, "pellucid.request.value?.tokens.length === 25")
    page.evaluate("""() => {
      const request = pellucid.request.value;
      const token = pellucid.store.token(request.tokens.at(-2));
      const other = token.cand.find((each) => each.id !== token.id).id;
      const body = {req: request.req, position: token.pos, token_id: other, max_tokens: 8};
      const fork = window.fork = {before: pellucid.store.head.seq, req: "", position: token.pos};
      const onData = (each) => { if (each.ev === "fork") fork.req = each.req; };
      pellucid.api.stream("/v1/page/fork", body, {onData});
    }""")
    wait_until(page, "window.fork.req !== ''")  # the page asks only while its events are waited for
    assert len(server.engine.unfinished_request_ids) == 2
    gate.open()
    wait_until(page, "pellucid.store.requests.get(window.fork.req)?.ledger")
    # The block in which the texts part has tokens of both: it is shared, and copied by who writes first.
    assert page.evaluate("window.fork.position") % BLOCK_TOKENS != 0
    copies = page.evaluate(
        "pellucid.store.pool.recent(Infinity, 5000)"
        ".filter(({seq, op}) => seq > window.fork.before && op === 'C').length"
    )
    assert copies == 1
