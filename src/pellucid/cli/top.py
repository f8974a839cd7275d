"""`pellucid top`: shows a running server's requests, KV cache and speed, live."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack, aclosing, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from pellucid.cli.parsing.options import DEFAULT_URL, AdminKey, Url
from pellucid.cli.parsing.panels import OUTPUT
from pellucid.progress import is_live

if TYPE_CHECKING:
    from pellucid.cli.server_status import ServerStatus

LEAST_INTERVAL = 0.1  # seconds


def top(
    url: Url = DEFAULT_URL,
    *,
    admin_key: AdminKey = None,
    interval: float = OUTPUT.option("SECONDS", "Seconds between two updates.", default=1.0),
    once: bool = OUTPUT.flag("Show the status once, and exit.", "--once"),
    json: bool = OUTPUT.flag("Write one line of JSON for each update.", "--json"),
) -> None:
    """Show what a running pellucid server does.

    Shows its requests, what each request waits for, the speeds of prefill and decode, and the blocks of the
    KV cache. Runs until Ctrl-C.
    """
    if not interval >= LEAST_INTERVAL:
        raise ValueError(f"--interval {interval}: must be at least {LEAST_INTERVAL}")
    if not (once or json or is_live(sys.stdout)):
        raise ValueError("top: stdout is no terminal that can be drawn again; try --once or --json")
    from rich.live import Live

    from pellucid.cli.output.json_output import print_json
    from pellucid.cli.server_screen import print_status, status_screen

    with ExitStack() as stack:
        show: Callable[[ServerStatus], None] = print_status
        if json:
            show = lambda status: print_json(asdict(status))  # noqa: E731
        elif not once:
            live = stack.enter_context(Live(screen=True, auto_refresh=False))
            show = lambda status: live.update(status_screen(status), refresh=True)  # noqa: E731
        with suppress(KeyboardInterrupt):  # how it ends
            asyncio.run(_watch(url, admin_key, None if once else interval, show))


async def _watch(
    url: str, admin_key: str | None, interval: float | None, show: "Callable[[ServerStatus], None]"
) -> None:
    """Shows the server's status every `interval` seconds; once, if that is None."""
    from pellucid.cli.server_status import ServerWatch
    from pellucid.server_client import ServerClient

    async with aclosing(ServerClient(url, admin_key)) as client:
        watch = ServerWatch(client)
        status = await watch.read()  # errors of the address and the key, before anything is drawn
        following = asyncio.create_task(watch.follow())
        try:
            if status.requests:
                await watch.first_speed()
            while True:
                show(await watch.read())
                if interval is None:
                    return
                await asyncio.sleep(interval)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
