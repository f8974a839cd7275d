"""Fixtures of the page's tests: Chromium, and a server on the bundled model. Without Chromium they are skipped."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from page.browser import CHROMIUM, FLAGS, PATIENCE, wait_until
from pellucid.observing import observation_budget
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server

try:
    from playwright.sync_api import Browser, sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

HOW = "make test-page installs playwright; Chromium comes with: apt-get install chromium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sync_playwright is None or shutil.which(CHROMIUM) is None:
        for item in items:
            if "tests/page/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=f"needs a browser: {HOW}"))


@pytest.fixture(autouse=True)
def observes_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an observation takes on a busy machine, there is time for it."""
    monkeypatch.setattr(observation_budget, "SHARE", 1000.0)


# The package ends the browser: the event loop of playwright disturbs other tests.
@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=FLAGS)
        yield started
        started.close()


@contextmanager
def bundled_server(**knobs: Any) -> Iterator[RunningServer]:
    """A server of the bundled model, in a thread of its own: playwright keeps an event loop in this one.

    Args:
        knobs: settings of its engine.
    """
    with ThreadPoolExecutor(1) as thread:
        running = running_server(bundled_engine(**knobs))
        yield thread.submit(running.__enter__).result()
        thread.submit(running.__exit__, None, None, None).result()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model behind a socket, without keys."""
    with bundled_server() as running:
        yield running


@contextmanager
def opened_page(browser: "Browser", server: RunningServer, may_fail: str = "\n") -> Iterator[Any]:
    """A page of the server in a window of its own. Nothing may fail in it, and nothing may leave this machine.

    Args:
        may_fail: in the text of errors that may come.
    """
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(1000 * PATIENCE)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: message.type == "error" and problems.append(message.text))

    def only_here(route: Any) -> None:
        if route.request.url.startswith((server.url, "data:", "blob:")):
            route.continue_()
        else:
            problems.append(f"asked for {route.request.url}")
            route.abort()

    context.route("**/*", only_here)
    try:
        opened.goto(server.url)
        opened.locator("nav a.on").wait_for()
        wait_until(
            opened, "pellucid.store.snapshotSeq >= 0"
        )  # from here on the page misses no event
        yield opened
    finally:
        context.unroute_all(behavior="ignoreErrors")  # the page may be asking for something
        context.close()
    assert [each for each in problems if may_fail not in each] == []


ALL_SHOWN = """seq => {
  const { store, cursor, later } = pellucid;
  return store.head.seq >= seq && later.cursor.seq.value === cursor.seq.value;
}"""


def wait_for_all_events(page: Any, server: RunningServer) -> None:
    """Waits until all requests have ended and each panel of the page shows what the engine told of them, or holds."""
    server.wait_until_idle()
    wait_until(page, ALL_SHOWN, server.engine.events.last_seq)


def forget_events(server: RunningServer) -> None:
    """Empties what the server keeps for late readers: a page then knows nothing of the tests before."""
    feed = server.service.feed
    server.wait_until(lambda: not feed._readers, "the end of the page before")
    feed._kept.clear()
    feed._num_kept = 0


@pytest.fixture
def page(browser: "Browser", server: RunningServer) -> Iterator[Any]:
    forget_events(server)
    with opened_page(browser, server) as opened:
        yield opened
