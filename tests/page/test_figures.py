"""Each figure marked M or C is recomputed from the events of runs with drafts, batches, preemption and cancellation."""

import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import opened_page, wait_for_all_events
from page.figures import DEFINITIONS, OF_FORMATS, Event, Moment, marked_figures
from pellucid.memory.memory_plan import MemoryPlan
from pellucid.observing.events import Level
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server
from support.step_gate import StepGate

SECONDS = 60  # within which the page has drawn what it knows

# Of each badge: what it marks, the row of a table it stands in, and the text that it marks: all of it or its end.
READ = """() => [...document.querySelectorAll(".badge-M, .badge-C")].filter((b) => b.offsetParent).map((badge) => {
  const label = badge.getAttribute("aria-label").replace(/: (measured|counted)\\. Show where it comes from\\.$/, "");
  const row = badge.closest("tr")?.querySelector("th")?.innerText ?? "";
  const fact = badge.closest(".fact")?.querySelector("dd");
  if (fact) return [label, row, fact.innerText, true];
  const whole = badge.closest(".num, td.number");
  const range = document.createRange();
  range.setStart(whole ?? badge.parentElement, 0);
  range.setEndBefore(badge);
  return [label, row, range.toString(), whole !== null];
})"""
ONE_OF_MANY = re.compile(
    r"(?<![\d.,+−] )(?<![\d.,])1 (?:\w+ )?(?:steps|tokens|blocks|requests|rounds|drafts|runs)\b.*"
)
KEEP_REPLIES = """() => {
  window.replies = [];
  const { fetch } = window;
  window.fetch = async (...asked) => {
    const reply = await fetch(...asked);
    const path = new URL(reply.url).pathname;
    reply.clone().text().then((text) => window.replies.push([path, text]), () => {});
    return reply;
  };
}"""


def test_each_marked_figure_has_a_definition() -> None:
    assert marked_figures() == DEFINITIONS.keys() | BY_FORMULA | ESTIMATED


# Formulas over inputs that stand beside them, which test_formulas.py compares with those of Python; and what the
# server says of a number, which is E for these.
BY_FORMULA = {("learn", "$claim")}
ESTIMATED = {("plan", "$label"), ("plan", "throughput"), ("plan", "a million tokens")}


@dataclass
class Reader:
    """Reads the figures of a page and compares them with their definitions.

    Attributes:
        page: of the browser.
        events: all that the engine has told.
        plan: of the engine's memory.
        seen: what was shown and right at least once.
    """

    page: Any
    events: Sequence[Event]
    plan: MemoryPlan
    seen: set[tuple[str, str]] = field(default_factory=set)

    def moment(self) -> Moment:
        seq, req, replies = self.page.evaluate(
            "[pellucid.cursor.seq.value, pellucid.request.value?.req ?? '', window.replies]"
        )
        known = [each for each in self.events if each["seq"] <= seq]
        return Moment(known, req, self.plan, [(path, _parsed(text)) for path, text in replies])

    def open(self, view: str) -> Any:
        self.page.evaluate("view => { pellucid.cursor.goLive(); pellucid.route.go(view); }", view)
        self.page.locator(f"main.view-{view} h2").first.wait_for()
        return self.page

    def look(self, moment: str, req: str) -> None:
        """At a request and its newest token, at a moment to which a script moves the cursor."""
        self.page.evaluate(
            "req => { pellucid.selection.req.value = req; pellucid.selection.pos.value = -1; }", req
        )
        self.page.evaluate(moment)

    def has_seen(self, view: str, but: Collection[tuple[str, str]] = ()) -> None:
        assert {key for key in DEFINITIONS if key[0] == view and key not in but} <= self.seen

    def check(self) -> None:
        """All figures that are shown are right, once the page has drawn what it knows."""
        end = time.monotonic() + SECONDS
        while wrong := self._wrong():
            assert time.monotonic() < end, wrong
            self.page.wait_for_timeout(20)

    def check_until_seen(self, view: str, label: str) -> None:
        """All figures that are shown are right, until one of them is this one."""
        end = time.monotonic() + SECONDS
        while (view, label) not in self.seen:
            assert time.monotonic() < end, f"not shown: {label}"
            self.check()
            self.page.wait_for_timeout(20)

    def _wrong(self) -> list[str]:
        moment = self.moment()
        view = self.page.evaluate("pellucid.route.now.value.view")
        text = self.page.evaluate("document.body.innerText")
        wrong = [f"{view}: {plural!r}" for plural in ONE_OF_MANY.findall(text)]
        found = []
        for label, row, text, is_whole in self.page.evaluate(READ):
            key, column = _definition_of(view, label, row)
            if key in BY_FORMULA:
                continue
            shown = " ".join(text.split())
            try:
                expected = DEFINITIONS[key](replace(moment, column=column))
            except (KeyError, IndexError, ValueError) as error:
                expected = f"{type(error).__name__}: {error}"
            if shown != expected and (is_whole or not _ends_with(shown, expected)):
                where = f"{view}, {moment.req[-6:]} at {moment.events[-1]['seq']}"
                wrong.append(f"{where}: {label} {row}: {shown!r}, not {expected!r}")
            found.append(key)
        if not wrong:
            self.seen.update(found)
        return wrong


def _definition_of(view: str, label: str, row: str) -> tuple[tuple[str, str], str]:
    """The key of a figure's definition, and the column of a table, or what else its label adds."""
    head, _, column = label.rpartition(", ")
    for key in ((view, label), ("every view", label)):
        if key in DEFINITIONS:
            return key, row
    if (view, head) in DEFINITIONS:
        return (view, head), column
    names = {"timeline": "$name", "learn": "$claim"}
    return (view, names.get(view, label)), label


def _ends_with(text: str, expected: str) -> bool:
    rest = text.removesuffix(expected)
    return rest != text and not rest[-1:].isdigit() and rest[-1:] not in (".", ",")


def _parsed(text: str) -> Any:
    if text.startswith("data: ") or "\n\ndata: " in text:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line[:6] == "data: "]
        return [json.loads(line) for line in lines if line != "[DONE]"]
    return json.loads(text) if text[:1] in "{[" else text


REPEATS = (
    "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on the mat."
    " The cat sat on"
)
LONG = "The old miller and the king " * 16


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with drafts, three seats, a pool in which two long texts do not fit, and small steps."""
    with ThreadPoolExecutor(1) as thread:
        engine = bundled_engine(
            speculation="ngram",
            block_size=16,
            num_kv_blocks=11,
            max_model_len=160,
            max_num_batched_tokens=32,
            max_num_seqs=3,
        )
        running = running_server(engine)
        yield thread.submit(running.__enter__).result()
        thread.submit(running.__exit__, None, None, None).result()


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


def moments(events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """Of each request: the first steps of its life, one in its middle, its last one, each change of its state, now."""
    steps = [each for each in events if each["ev"] == "step"]
    for added in [each for each in events if each["ev"] == "req.add"]:
        req = added["req"]
        rows = [
            row for row, step in enumerate(steps) if req in [name for name, *_ in step["batch"]]
        ]
        for row in sorted({*rows[:3], *rows[len(rows) // 2 :][:1], *rows[-1:]}):
            yield f"pellucid.cursor.seekStep({row})", req
        for change in events:
            if change["ev"] == "req.state" and change["req"] == req:
                yield f"pellucid.cursor.seek({change['seq']})", req
        yield "pellucid.cursor.goLive()", req


@pytest.mark.parametrize("view", ["generate", "timeline", "cache"])
def test_figures_of_each_request_at_each_moment(reader: Reader, view: str) -> None:
    page = reader.open(view)
    if view == "timeline":
        page.keyboard.press("a")  # all steps
    for moment, req in moments(list(reader.events)):
        reader.look(moment, req)
        reader.check()
    if view == "generate":  # attention comes once a token stands still
        page.locator(".read-list").wait_for()
        reader.check()
    if view == "cache":
        page.evaluate(
            "pellucid.selection.block.value = pellucid.store.pool.newest.fill.indexOf(16)"
        )
        page.locator(".pick-row").wait_for()
        reader.check()
    reader.has_seen(view)


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
        for _ in range(3):
            send(threads, server, "Once", 4)
        gate.let(1)
        server.wait_until(lambda: gate.num_left == 0, "a step of the three that have a seat")
        send(threads, server, "Twice", 4)
        reader.check_until_seen("serve", "place in the queue")
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
