"""`pellucid trace`: records a server's events, shows a recording, and writes it in the forms of other tools."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.terminal import note, note_facts
from pellucid.cli.parsing.options import DEFAULT_URL, AdminKey
from pellucid.cli.parsing.panels import SERVER, Panel, argument

RECORDING, EXPORT, REPLAY = Panel("Record"), Panel("Export"), Panel("Replay")


class Action(str, Enum):
    """What to do with a recording."""

    RECORD = "record"
    REPLAY = "replay"
    EXPORT = "export"


LEVELS = ("stat", "step", "text", "token")  # how much a recording has


def trace(
    action: Annotated[Action, argument("ACTION", "One of record, replay and export.")],
    file: Annotated[
        Path, argument("FILE", "The recording: a JSON object a line, compressed if it ends in .gz.")
    ],
    *,
    url: str = SERVER.option("URL", "The server's address.", default=DEFAULT_URL),
    admin_key: AdminKey = None,
    level: str = RECORDING.option("|".join(LEVELS), "How much to record.", default="token"),
    seconds: float | None = RECORDING.option(
        "SECONDS", "How long to record.", show_default="until Ctrl-C"
    ),
    with_text: bool = RECORDING.flag(
        "Record prompts, answers and ids; without this option they are left out.", "--with-text"
    ),
    until: int | None = REPLAY.option("SEQ", "The last event to replay.", show_default="all"),
    speed: float = REPLAY.option(
        "TIMES",
        "Speed of the replay, 1 is real time; 0 prints only the state at the end.",
        default=0.0,
    ),
    json: bool = REPLAY.flag("Print the state as JSON.", "--json"),
    perfetto: Path | None = EXPORT.option("FILE", "Write a trace for https://ui.perfetto.dev."),
    csv: Path | None = EXPORT.option("FILE", "Write a line for each step."),
) -> None:
    """Record what a server does, and look at recordings.

    record writes the events of a running server to FILE, without prompts and answers unless --with-text is
    given. replay shows the requests and blocks at a moment of a recording. export writes a recording for
    Perfetto or as CSV. pellucid page FILE shows a recording on the live page.
    """
    if action is Action.RECORD:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"--seconds {seconds}: must be above 0")
        if level not in LEVELS:
            raise ValueError(f"--level {level}: must be one of {', '.join(LEVELS)}")
        with suppress(KeyboardInterrupt):  # how it ends
            asyncio.run(_record(file, url, admin_key, level, seconds, with_text))
    elif action is Action.REPLAY:
        _replay(file, until, speed, json)
    else:
        _export(file, perfetto, csv)


async def _record(
    file: Path, url: str, key: str | None, level: str, seconds: float | None, with_text: bool
) -> None:
    from json import loads

    from pellucid.observing.event_recording import event_line, open_recording
    from pellucid.observing.events import VERSION
    from pellucid.observing.traces.redaction import Redactor
    from pellucid.server_client import ServerClient

    redact = (lambda event: event) if with_text else Redactor()
    num_events = 0

    async def follow(client: ServerClient) -> None:
        nonlocal num_events
        last: dict[str, Any] = {"v": VERSION, "seq": 0, "t_us": 0, "step": 0}
        events = client.stream("GET", f"/v1/events?level={level}")
        with open_recording(file) as opened:
            async with aclosing(events):
                async for _, data in events:
                    event = loads(data)
                    if "seq" in event:
                        last = {name: event[name] for name in last}
                    else:  # a snapshot, which belongs to the moment of the event before it
                        event = {**last, **event}
                    if (kept := redact(event)) is not None:
                        opened.write(event_line(kept))
                        num_events += 1

    note(f"recording {url} to {file}; Ctrl-C ends it")
    try:
        async with aclosing(ServerClient(url, key)) as client:
            following = asyncio.ensure_future(follow(client))
            with _cancelled_by_signals(following):
                await asyncio.wait_for(following, seconds)
    except (asyncio.TimeoutError, asyncio.CancelledError):
        pass
    finally:
        note_facts(
            "recorded", [f"{num_events} events", "with text" if with_text else "without text"]
        )


@contextmanager
def _cancelled_by_signals(future: "asyncio.Future[None]") -> Iterator[None]:
    """SIGTERM and SIGHUP cancel `future`, as Ctrl-C does: what it writes is closed and whole."""
    loop = asyncio.get_running_loop()
    handled = []
    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, future.cancel)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _replay(file: Path, until: int | None, speed: float, json: bool) -> None:
    from pellucid.observing.event_recording import read_recording
    from pellucid.observing.traces.state import TraceState

    if speed < 0:
        raise ValueError(f"--speed {speed}: must be 0 or above")
    state, shown_at, started = TraceState(), None, time.monotonic()
    for event in read_recording(file):
        if until is not None and event["seq"] > until:
            break
        state.apply(event)
        if speed and event["ev"] == "step":
            shown_at = event["t_us"] if shown_at is None else shown_at
            due = started + (event["t_us"] - shown_at) / 1e6 / speed
            time.sleep(max(0.0, due - time.monotonic()))
            print(_line(state))
            sys.stdout.flush()
    facts = {
        "seq": state.seq,
        "t_us": state.t_us,
        "step": state.step,
        "is_complete": state.is_complete,
        "requests": {name: vars(request) for name, request in state.requests.items()},
        "blocks": {block_id: vars(block) for block_id, block in sorted(state.blocks.items())},
    }
    if json:
        print_json(facts)
        return
    print(_line(state))
    for name, request in state.requests.items():
        reason = f": {request.reason}" if request.reason else ""
        print(f"  {name}  {request.state}{reason}  {request.num_tokens_seen} tokens seen")
    if not state.is_complete:
        note("events are missing: the recorder was too slow, and no snapshot followed")


def _line(state: Any) -> str:
    """A state in one line."""
    used = sum(block.owners > 0 for block in state.blocks.values())
    shared = sum(block.owners > 1 for block in state.blocks.values())
    cached = len(state.blocks) - used
    states = [request.state for request in state.requests.values()]
    counts = ", ".join(f"{states.count(name)} {name}" for name in dict.fromkeys(states)) or "idle"
    return (
        f"step {state.step}, {state.t_us / 1e6:.3f} s, event {state.seq}: {counts};"
        f" {used} blocks used ({shared} shared), {cached} cached"
    )


def _export(file: Path, perfetto: Path | None, csv: Path | None) -> None:
    from json import dump

    from pellucid.observing.event_recording import read_recording
    from pellucid.observing.traces.perfetto import perfetto_trace, write_csv

    if perfetto is None and csv is None:
        raise ValueError("export: needs --perfetto FILE or --csv FILE")
    if perfetto is not None:
        trace = perfetto_trace(read_recording(file))
        with perfetto.open("w", encoding="ascii") as opened:
            dump(trace, opened)
        note(f"perfetto: {perfetto}; open it at https://ui.perfetto.dev")
    if csv is not None:
        with csv.open("w", encoding="ascii", newline="") as opened:
            write_csv(read_recording(file), opened)
        note(f"csv: {csv}")
