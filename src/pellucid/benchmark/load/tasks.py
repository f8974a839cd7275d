"""Runs the requests of a load side by side."""

import asyncio
from collections.abc import Coroutine
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
