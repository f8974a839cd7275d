"""Shows a server's status as text for a terminal."""

import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pellucid.cli.output.terminal import page_width, visible
from pellucid.cli.output.units import rate
from pellucid.cli.server_status import ServerStatus

BAR_WIDTH = 40  # characters
COLUMNS = ("request", "caller", "state", "prompt", "cached", "output", "why")


def print_status(status: ServerStatus) -> None:
    """Writes the screen on stdout."""
    console = Console(
        file=sys.stdout,
        force_terminal=False,  # with TERM=dumb, rich would take a terminal to have 80 columns
        color_system=None,
        width=page_width(),
    )
    console.print(status_screen(status))


def status_screen(status: ServerStatus) -> RenderableType:
    """Speeds, blocks and a row for each request: those that run first, then by place in the queue."""
    waiting_last = sorted(
        status.requests, key=lambda each: (each["state"] == "waiting", each["queue_position"] or 0)
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in COLUMNS:
        is_number = title in ("prompt", "cached", "output")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    for request in waiting_last:
        table.add_row(*map(_text, _cells(request)))
    lines = [
        f"{status.model} at {status.url}: {status.health}",
        _speeds(status),
        _blocks(status.kv),
    ]
    head = _text("\n".join(lines) + "\n")
    return Group(head, table if status.requests else _text("No request is under way."))


def _text(text: str) -> Text:
    """Never read as markup or as escape sequences: names come from a server."""
    return Text(visible(text), overflow="ellipsis")


def _speeds(status: ServerStatus) -> str:
    stat = status.stat or {"in_tok_s": 0, "out_tok_s": 0}
    facts = [
        f"{status.in_state('running')} running",
        f"{status.in_state('waiting')} waiting",
        f"prompts {rate(stat['in_tok_s'], 1.0)}",
        f"output {rate(stat['out_tok_s'], 1.0)}",
    ]
    if (share := stat.get("hit_frac")) is not None:
        facts.append(f"{share:.0%} of prompts in the cache")
    return " · ".join(facts)


def _blocks(kv: dict[str, Any]) -> str:
    """A bar of the KV cache: # used by requests, - free and still found, . empty."""
    total = max(1, kv["num_blocks"])
    used = round(BAR_WIDTH * kv["num_used_blocks"] / total)
    known = round(BAR_WIDTH * (kv["num_used_blocks"] + kv["num_cached_blocks"]) / total)
    bar = "#" * used + "-" * (known - used) + "." * (BAR_WIDTH - known)
    return (
        f"KV cache [{bar}] {kv['num_blocks']} blocks of {kv['block_size']} tokens\n"
        f"# {kv['num_used_blocks']} used  - {kv['num_cached_blocks']} cached"
        f"  . {kv['num_empty_blocks']} empty"
    )


def _cells(request: dict[str, Any]) -> tuple[str, ...]:
    """One for each of COLUMNS."""
    state = request["state"]
    if request["queue_position"] is not None and state == "waiting":
        state += f", place {request['queue_position'] + 1}"
    reasons = [
        completion["reason"]
        for completion in request["completions"].values()
        if completion["reason"]
    ]
    return (
        request["id"][:12],
        request["caller"],
        state,
        str(request["prompt_tokens"]),
        str(request["cached_tokens"]),
        str(request["output_tokens"]),
        reasons[-1] if reasons else "",
    )
