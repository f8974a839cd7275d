"""A pool that is too small, and a fork while a text is written: what happens to blocks is seen and explained."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from page.browser import wait_until
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server

BLOCK_TOKENS = 16
NUM_BLOCKS = 12


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with a pool in which one long text fits, and two do not."""
    with ThreadPoolExecutor(1) as thread:
        engine = bundled_engine(
            block_size=BLOCK_TOKENS,
            num_kv_blocks=NUM_BLOCKS,
            max_model_len=NUM_BLOCKS * BLOCK_TOKENS,
        )
        running = running_server(engine)
        yield thread.submit(running.__enter__).result()
        thread.submit(running.__exit__, None, None, None).result()


def write(server: RunningServer, prompt: str, tokens: int) -> str:
    body = {"model": "tested", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    reply = server.post("/v1/completions", {**body, "ignore_eos": True})
    assert reply.status == 200
    return reply.json["choices"][0]["text"]


def test_a_preemption_is_seen_and_explained(page: Any, server: RunningServer) -> None:
    prompts = ("Once upon a time", "The old miller and the king")
    alone = [write(server, prompt, 120) for prompt in prompts]
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(lambda prompt: write(server, prompt, 120), prompts))
    assert together == alone
    page.keyboard.press("2")
    wait_until(
        page, "[...pellucid.store.requests.values()].filter((each) => each.ledger).length >= 4"
    )
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


def test_a_fork_of_a_running_text_makes_one_copy_at_most(page: Any, server: RunningServer) -> None:
    page.keyboard.press("1")
    page.locator("#run:not([disabled])").wait_for()
    page.evaluate(
        "() => { const state = pellucid.views.generate; state.max_tokens.value = 100;"
        " state.temperature.value = 0; pellucid.runs.start('/v1/completions',"
        " {prompt: 'Once upon a time', max_tokens: 100, temperature: 0, ignore_eos: true}); }"
    )
    wait_until(page, "pellucid.request.value?.tokens.length > 20")
    fork = """async () => {
      const request = pellucid.request.value;
      const at = request.tokens.length - 2;
      const token = pellucid.store.token(request.tokens[at]);
      const other = token.cand.find((each) => each.id !== token.id).id;
      const before = pellucid.store.head.seq;
      const body = {req: request.req, position: token.pos, token_id: other, max_tokens: 8};
      let forked = "";
      const onData = (each) => { if (each.ev === "fork") forked = each.req; };
      await pellucid.api.stream("/v1/page/fork", body, {onData});
      return [before, forked, token.pos, request.ledger === null];
    }"""
    before, forked, position, was_running = page.evaluate(fork)
    wait_until(page, f"pellucid.store.requests.get('{forked}')?.ledger")
    ops = page.evaluate(
        "seq => pellucid.store.pool.recent(Infinity, 5000).filter((each) => each.seq > seq)", before
    )
    copies = [each for each in ops if each["op"] == "C"]
    # The block in which the texts part is shared when it has tokens of both, and copied by who writes first.
    is_partial = position % BLOCK_TOKENS != 0
    assert len(copies) <= 1
    if was_running and is_partial:
        assert len(copies) == 1
