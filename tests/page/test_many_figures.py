"""Figures marked M or C beside 201 requests, more than a table shows at once, whose events come late and in bursts."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import bundled_server, opened_page, wait_for_all_events
from page.figure_reader import KEEP_REPLIES, Reader, check_view, moments
from page.figures import Event
from pellucid.observing import observation_budget
from pellucid.observing.event_bus import EventRecord
from pellucid.observing.event_feed import EventFeed
from pellucid.observing.events import Level
from support.http_server import RunningServer

NUM_REQUESTS = 201
STORY = "The old miller and the king lived near the sea with a small dog and a cat."  # fills a block, which all share
# Events that reach the page together. Most bursts end within the events of a step.
BURSTS = (1, 2, 3, 5, 8, 60, 61, 150, 7, 400, 401, 11)
VIEWS = ("generate", "timeline", "cache", "serve", "plan")


class Bursts:
    """Readers of a feed get the events that a test lets through, and wait for the others."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.last_seq = -1  # of those that were let through
        self._num_left: float = float("inf")
        take = EventFeed.take

        def take_some(feed: EventFeed, position: int) -> tuple[list[EventRecord], int]:
            records, first = take(feed, position)
            allowed = records[: int(min(len(records), self._num_left))]
            self._num_left -= len(allowed)
            self.last_seq = max([self.last_seq, *(each.seq for each in allowed)])
            return allowed, first

        patch.setattr(EventFeed, "take", take_some)

    def let(self, num_events: float) -> None:
        self._num_left = num_events

    @property
    def has_ended(self) -> bool:
        return self._num_left == 0


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model with eight seats, and more blocks than one moment's requests fill."""
    with bundled_server(
        block_size=16,
        num_kv_blocks=40,
        max_model_len=64,
        max_num_batched_tokens=64,
        max_num_seqs=8,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def reader(browser: Any, server: RunningServer, patch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A page whose events came in bursts after all requests had ended; each view was right after each burst."""
    events: list[Event] = []
    stop = server.engine.events.subscribe(lambda each: events.append(each.as_dict()), Level.TOKEN)
    bursts = Bursts(patch)
    with opened_page(browser, server) as page:
        page.evaluate(KEEP_REPLIES)
        bursts.let(0)
        prompts = [f"{STORY} {number}" for number in range(NUM_REQUESTS)]
        # The choices of some tokens are looked at; a busy engine has no time for the others.
        for share, some in ((1000.0, prompts[:100]), (0.0, prompts[100:])):
            patch.setattr(observation_budget, "SHARE", share)
            body = {"model": "tested", "prompt": some, "max_tokens": 3, "ignore_eos": True}
            assert server.post("/v1/completions", body).status == 200
        server.wait_until_idle()
        reader = Reader(page, events, server.engine.memory_plan)
        for num_events, view in zip(BURSTS, cycle(VIEWS), strict=False):
            bursts.let(num_events)
            server.wait_until(lambda: bursts.has_ended, "the burst")
            wait_until(page, "seq => pellucid.store.head.seq === seq", bursts.last_seq)
            reader.open(view)
            reader.check()
        assert 0 < bursts.last_seq < server.engine.events.last_seq
        bursts.let(float("inf"))
        wait_for_all_events(page, server)
        yield reader
        server.wait_until_idle()
    stop()


@pytest.mark.parametrize("view", ["generate", "timeline", "cache"])
def test_figures_of_the_first_a_middle_and_the_last_request(reader: Reader, view: str) -> None:
    added = [each["req"] for each in reader.events if each["ev"] == "req.add"]
    assert len(added) == NUM_REQUESTS
    chosen = {added[0], added[NUM_REQUESTS // 2], added[-1]}
    check_view(reader, view, (each for each in moments(list(reader.events)) if each[1] in chosen))


def test_the_table_of_lanes_has_them_all(reader: Reader) -> None:
    page = reader.open("timeline")
    page.evaluate("pellucid.cursor.goLive()")
    page.keyboard.press("a")
    page.keyboard.press("t")
    table = page.locator(".twin").first
    shown = []
    table.get_by_text(f"rows 1 to 200 of {NUM_REQUESTS}").wait_for()
    shown += table.locator("tbody tr").all_inner_texts()
    table.get_by_role("button", name="after").click()
    table.get_by_text(f"rows 201 to {NUM_REQUESTS} of {NUM_REQUESTS}").wait_for()
    shown += table.locator("tbody tr").all_inner_texts()
    page.keyboard.press("t")
    steps = [each["batch"] for each in reader.events if each["ev"] == "step"]
    expected = []
    for added in (each for each in reader.events if each["ev"] == "req.add"):
        passed = [num for batch in steps for name, num, _ in batch if name == added["req"]]
        # The steps of the prompt, those of a token each, and none again.
        prefill = sum(num > 1 for num in passed)
        expected.append(
            [f"r{added['num']}", "done", str(added["prompt_tok"]), str(prefill), "2", "0"]
        )
    rows = [row.split("\t") for row in shown]
    assert [[row[0], row[2], row[4], row[5], row[6], row[10]] for row in rows] == expected
