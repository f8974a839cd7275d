"""Starts Chromium and waits for what it shows, for tests and screenshots."""

import time
from typing import Any

CHROMIUM = "chromium"
FLAGS = (
    "--no-sandbox",  # CI runs as root in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PATIENCE = 60  # seconds: a limit against hangs, on a machine that is slow and busy


def patient_page(browser: Any, **context: Any) -> Any:
    """A page in a window of its own, whose locators wait as long as `wait_until`."""
    page = browser.new_page(**context)
    page.set_default_timeout(1000 * PATIENCE)
    return page


def wait_until(page: Any, expression: str, argument: Any = None, seconds: float = PATIENCE) -> None:
    """Waits until an expression of the page is true. `wait_for_function` needs eval, which the policy refuses."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, f"not within {seconds:g} s: {expression}"
        page.wait_for_timeout(30)
