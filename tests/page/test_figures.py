"""Each figure marked M or C is recomputed from the events of runs with drafts, batches, preemption and cancellation."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import bundled_server, opened_page, wait_for_all_events
from page.figure_reader import BY_FORMULA, ESTIMATED, KEEP_REPLIES, Reader, check_view, moments
from page.figures import DEFINITIONS, OF_FORMATS, Event, marked_figures
from pellucid.observing.events import Level
from support.http_server import RunningServer
from support.step_gate import StepGate


def test_each_marked_figure_has_a_definition() -> None:
    assert marked_figures() == DEFINITIONS.keys() | BY_FORMULA | ESTIMATED


REPEATS = (
    "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on the mat."
    " The cat sat on"
)
LONG = "The old miller and the king " * 16


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with drafts, three seats, a pool in which two long texts do not fit, and small steps."""
    with bundled_server(
        speculation="ngram",
        block_size=16,
        num_kv_blocks=11,
        max_model_len=160,
        max_num_batched_tokens=32,
        max_num_seqs=3,
    ) as running:
        yield running


def write(server: RunningServer, prompt: str, max_tokens: int, **fields: Any) -> None:
    body = {"model": "tested", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    server.post("/v1/completions", {**body, "ignore_eos": True, **fields})


def send(threads: ThreadPoolExecutor, server: RunningServer, prompt: str, max_tokens: int) -> None:
    """Returns when the server has the request."""
    before = len(server.service.under_way)
    threads.submit(write, server, prompt, max_tokens)
    server.wait_until(lambda: len(server.service.under_way) > before, "the request")


def run_all(server: RunningServer) -> None:
    write(server, REPEATS, 20)  # drafts, and a prompt in two chunks
    server.wait_until_idle()
    gate = StepGate(server.engine)
    with ThreadPoolExecutor(4) as threads:  # preemption, a full queue, a prefix that is found
        send(threads, server, "Once upon a time", 100)
        send(threads, server, "The old miller and the king", 90)
        send(threads, server, REPEATS, 40)
        send(threads, server, "What is 12 + 7?", 30)
        gate.open()
    server.wait_until_idle()
    for num_steps in (0, 2, 12):  # cancelled in the queue, within its prompt, within its answer
        gate = StepGate(server.engine, num_steps)
        with ThreadPoolExecutor(1) as threads:
            send(threads, server, LONG, 20)
            server.wait_until(lambda gate=gate: gate.num_left == 0, "these steps")
            [name] = server.service.under_way
            assert server.post(f"/v1/requests/{name}/cancel", {}).status == 200
            gate.open()
        server.wait_until_idle()
    write(server, "A story of the sea and of the king who lived there:", 24, n=2, temperature=0.9)
    server.wait_until_idle()


@pytest.fixture(scope="module")
def reader(browser: Any, server: RunningServer) -> Iterator[Reader]:
    """A page that has seen all requests of `run_all`."""
    events: list[Event] = []
    stop = server.engine.events.subscribe(lambda each: events.append(each.as_dict()), Level.TOKEN)
    # The engine refuses to look at attention that it would have to compute again.
    with opened_page(browser, server, may_fail="400 (Bad Request)") as page:
        page.evaluate(KEEP_REPLIES)
        run_all(server)
        wait_for_all_events(page, server)
        yield Reader(page, events, server.engine.memory_plan)
        server.wait_until_idle()
    stop()


@pytest.mark.parametrize("view", ["generate", "timeline", "cache"])
def test_figures_of_each_request_at_each_moment(reader: Reader, view: str) -> None:
    check_view(reader, view, moments(list(reader.events)))


def test_figures_of_drafts(reader: Reader) -> None:
    page = reader.open("speculate")
    drafted = {each["req"] for each in reader.events if each["ev"] == "draft"}
    for moment, req in moments(list(reader.events)):
        if req in drafted:
            reader.look(moment, req)
            reader.check()
    page.evaluate(
        "text => { const state = pellucid.views.speculate; state.prompt.value = text;"
        " state.drafter.value = 'ngram'; state.tokens.value = 16; }",
        REPEATS,
    )
    page.keyboard.press("r")
    page.locator(".why", has_text="All 16 tokens are the same.").wait_for()
    reader.check()
    reader.has_seen("speculate")


@pytest.mark.parametrize("kind", ["cache", "kv_dtype", "batch"])
def test_figures_of_a_comparison(reader: Reader, kind: str) -> None:
    page = reader.open("compare")
    page.evaluate(
        "kind => { const state = pellucid.views.compare; state.kind.value = kind;"
        " state.tokens.value = 40; state.batch.value = 3; }",
        kind,
    )
    page.keyboard.press("r")
    wait_until(page, "Boolean(pellucid.views.compare.latest?.end)")
    reader.check()
    reader.has_seen("compare", but=() if kind == "kv_dtype" else OF_FORMATS)


def test_figures_of_a_load_and_of_the_queue(reader: Reader, server: RunningServer) -> None:
    page = reader.open("serve")
    page.evaluate(
        "() => { const state = pellucid.views.serve; state.requests.value = 4; state.rate.value = 60;"
        " state.outputTok.value = 8; state.promptTok.value = 8; state.seats.value = 2; }"
    )
    page.keyboard.press("r")
    wait_until(page, "Boolean(pellucid.views.serve.loads.continuous?.end)")
    wait_for_all_events(page, server)
    reader.check()
    for moment, req in moments(list(reader.events)[:400]):
        reader.look(moment, req)
        reader.check()
    gate = StepGate(server.engine)
    with ThreadPoolExecutor(4) as threads:
        try:
            for _ in range(3):
                send(threads, server, "Once", 4)
            server.wait_until(
                lambda: len(server.engine.unfinished_request_ids) == 3, "three in the engine"
            )
            gate.let(1)
            server.wait_until(lambda: gate.num_left == 0, "a step of the three that have a seat")
            send(threads, server, "Twice", 4)
            reader.check_until_seen("serve", "place in the queue")
        finally:
            gate.open()
    reader.has_seen("serve")


def test_figures_of_the_plan(reader: Reader) -> None:
    page = reader.open("plan")
    page.locator(".fact", has_text="longest text alone").wait_for()
    for moment, req in moments(list(reader.events)[:400]):
        reader.look(moment, req)
        reader.check()
    reader.has_seen("plan")


def test_figures_of_a_chat(reader: Reader, server: RunningServer) -> None:
    page = reader.open("chat")
    wait_until(page, "pellucid.views.chat?.isReady.value")
    for number, text in enumerate(("The old miller and the king", "And then?"), 1):
        page.evaluate(
            "text => { const { chat } = pellucid.views; chat.set({ params: { max_tokens: 20, seed: 1 } });"
            " chat.send(text, []); }",
            text,
        )
        wait_until(
            page,
            "messages => { const branch = pellucid.views.chat.branch.value;"
            " return branch.length === messages && branch.at(-1).status === 'whole'; }",
            2 * number,
        )
    wait_for_all_events(page, server)
    reader.check()
    reader.has_seen("chat")


def test_figures_of_learn_and_of_the_header(reader: Reader) -> None:
    page = reader.open("learn")
    page.get_by_role("link", name="Questions").click()
    page.locator(".why", has_text="Fun fact.").wait_for()
    reader.check()
    reader.has_seen("learn")
    reader.has_seen("every view")
