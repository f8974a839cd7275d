"""What reaches a terminal, and what a pipe."""

import io
import sys
import time

import pytest

from pellucid.cli.terminal import note, write_text
from pellucid.cli.units import describe_bytes, describe_tokens
from pellucid.progress import LINE_INTERVAL, is_live, progress

ESCAPES = "a\tb\n\x1b]0;title\x07\x1b[31mred\r\x7f\x9b2J é 🦊"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "no_color", "live"),
    [
        (Screen(), "xterm-256color", None, True),
        (Screen(), "xterm-256color", "", True),  # no-color.org: only if not empty
        (Screen(), "xterm-256color", "1", False),
        (Screen(), "dumb", None, False),
        (Screen(), None, None, False),
        (io.StringIO(), "xterm-256color", None, False),
    ],
)
def test_only_a_capable_terminal_is_live(
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO,
    term: str | None,
    no_color: str | None,
    live: bool,
) -> None:
    for name, value in (("TERM", term), ("NO_COLOR", no_color)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert is_live(stream) is live


def test_a_model_cannot_drive_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    write_text(ESCAPES)
    assert screen.getvalue() == "a\tb\n␛]0;title␇␛[31mred␍␡�2J é 🦊"


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", pipe := io.StringIO())
    write_text(ESCAPES)
    assert pipe.getvalue() == ESCAPES


def test_a_note_shows_controls_that_an_error_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    note("error: \x1b[2J")
    assert capsys.readouterr().err == "error: ␛[2J\n"


def test_progress_lines_are_rare_and_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with progress("prefill", describe_tokens) as show:
        for step in range(1, 41):
            now = step * LINE_INTERVAL / 16
            show(step, 40)
    assert capsys.readouterr().err.splitlines() == [
        "prefill: 4 of 40 tokens, 3.20 tok/s",
        "prefill: 20 of 40 tokens, 3.20 tok/s",
        "prefill: 36 of 40 tokens, 3.20 tok/s",
    ]


def test_a_bar_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("pellucid.progress.BAR_DELAY", 0.0)
    with progress("load", describe_bytes) as show:
        show(3 << 20, 6 << 20)
        deadline = time.monotonic() + 10
        while "load" not in screen.getvalue():  # it is drawn by a thread
            assert time.monotonic() < deadline
            time.sleep(0.01)
    drawn = screen.getvalue()
    assert "load" in drawn and "3.00 MiB of 6.00 MiB" in drawn
    assert drawn.endswith("\x1b[1A\x1b[2K")  # one line up, erased
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1  # the cursor is back


def test_what_is_over_soon_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("pellucid.progress.BAR_DELAY", 60.0)
    with progress("load", describe_bytes) as show:
        show(1, 2)
    assert screen.getvalue() == ""
