"""Shows progress: a bar on a live terminal, otherwise a line every few seconds."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Show = Callable[[int, int], None]  # (done, in all)
Describe = Callable[[int, int, float], str]  # (done, in all, seconds since the start)

BAR_DELAY = 0.2  # seconds: what is over sooner draws nothing
FIRST_LINE = 1.0  # seconds until the first line where nothing can be drawn again
LINE_INTERVAL = 5.0  # seconds between such lines


def understands_escapes(stream: TextIO) -> bool:
    """Whether it is a terminal that can draw a line again."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def is_live(stream: TextIO) -> bool:
    """Whether lines may be drawn again and coloured: a terminal that can, and NO_COLOR is not set
    (https://no-color.org)."""
    return understands_escapes(stream) and not os.environ.get("NO_COLOR")


@contextmanager
def progress(label: str, describe: Describe, *, quiet: bool = False) -> Iterator[Show]:
    """Shows on stderr what the caller reports; nothing is left of a bar when the block ends.

    Args:
        label: what is going on, one word.
        describe: the numbers behind the label.
    """
    if quiet:
        yield lambda done, total: None
        return
    start = time.monotonic()

    def status(done: int, total: int) -> str:
        return describe(done, total, max(time.monotonic() - start, 1e-6)) if total else ""

    reporter = _bar if is_live(sys.stderr) else _lines
    with reporter(label, status) as show:
        yield show


@contextmanager
def _bar(label: str, status: Callable[[int, int], str]) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn(f"{label:<8}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=None, status="")
    timer = threading.Timer(BAR_DELAY, bar.start)
    timer.start()
    try:
        yield lambda done, total: bar.update(
            task, completed=done, total=total, status=status(done, total)
        )
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def _lines(label: str, status: Callable[[int, int], str]) -> Iterator[Show]:
    """A first line after a second, even if nothing has been reported, then one every few seconds, and one when all is
    done, if there were others."""
    lock = threading.Lock()
    latest, next_line = (0, 0), time.monotonic() + FIRST_LINE
    written: tuple[int, int] | None = None

    def write(interval: float) -> None:
        nonlocal next_line, written
        next_line = time.monotonic() + interval
        written = latest
        numbers = status(*latest)
        print(f"{label}: {numbers}" if numbers else f"{label} ...", file=sys.stderr, flush=True)

    def first_line() -> None:
        with lock:
            if not timer.finished.is_set():
                write(LINE_INTERVAL)

    def show(done: int, total: int) -> None:
        nonlocal latest
        with lock:
            latest = (done, total)
            if time.monotonic() >= next_line:
                timer.cancel()
                write(LINE_INTERVAL)

    timer = threading.Timer(FIRST_LINE, first_line)
    timer.daemon = True
    timer.start()
    try:
        yield show
    finally:
        with lock:
            timer.cancel()
            done, total = latest
            if written not in (None, latest) and done == total:
                write(LINE_INTERVAL)
