"""Runs the requests of a load side by side, each when it is due."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def run_all(coroutines: list[Coroutine[Any, Any, None]]) -> None:
    """Waits for all of them; cancelled, or if one fails, cancels the others and waits for their ends."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def sleep_until(due: float, now: Callable[[], float]) -> None:
    """Never returns before `due`, and at once where it has passed. One sleep is not enough: uvloop counts in whole
    milliseconds, and its sleeps may end one or two of them early.

    Args:
        due: in seconds of the clock `now`.
    """
    while (seconds := due - now()) > 0:
        await asyncio.sleep(seconds)
