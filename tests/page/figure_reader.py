"""Reads what a page shows and compares each figure marked M or C with its definition in figures.py."""

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from page.figures import DEFINITIONS, Event, Moment
from pellucid.memory.memory_plan import MemoryPlan

SECONDS = 60  # within which the page has drawn what it knows

# Of each badge: what it marks, the row of a table it stands in, and the text that it marks: all of it or its end.
READ = """() => [...document.querySelectorAll(".badge-M, .badge-C")].filter((b) => b.offsetParent).map((badge) => {
  const label = badge.getAttribute("aria-label").replace(/: (measured|counted)\\. Show where it comes from\\.$/, "");
  const row = badge.closest("tr")?.querySelector("th")?.innerText ?? "";
  const fact = badge.closest(".fact")?.querySelector("dd");
  if (fact) return [label, row, fact.innerText, true];
  const whole = badge.closest(".figures td") ?? badge.closest(".num, td.number");
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
        missing = {key for key in DEFINITIONS if key[0] == view and key not in but} - self.seen
        assert not missing, missing

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


def check_view(reader: Reader, view: str, of: Iterable[tuple[str, str]]) -> None:
    """All figures of a view are right at each of some moments, and all that it has were shown."""
    page = reader.open(view)
    if view == "timeline":
        page.keyboard.press("a")  # all steps
    for moment, req in of:
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
