"""Output to a terminal and to a pipe: colours, control characters, progress."""

import io
import re
import sys
import time

import pytest

from pellucid.cli.output.terminal import AnswerWriter, note, note_facts, write_text
from pellucid.cli.output.units import describe_bytes, describe_tokens
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
        "prefill: 40 of 40 tokens, 3.20 tok/s",  # nobody is left with a line that says 36
    ]


def test_a_bar_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("pellucid.progress.BAR_DELAY", 0.0)
    with progress("load", describe_bytes) as show:
        show(3 << 20, 6 << 20)
        deadline = time.monotonic() + 60
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


def drawn(written: str, columns: int) -> list[str]:
    """The lines that a terminal shows of text with the escapes that `AnswerWriter` uses."""
    lines, column = [""], 0
    for match in re.finditer(r"\x1b\[(\d*)([DKm])|(.)|(\n)", written):
        count, command, character, newline = match.groups()
        if newline:
            lines.append("")
            column = 0
        elif command == "D":
            column -= int(count)
        elif command == "K":
            lines[-1] = lines[-1][:column]
        elif character:
            assert column < columns, "the terminal would break the line itself"
            lines[-1] = lines[-1][:column] + character + lines[-1][column + 1 :]
            column += 1
    return lines


@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("columns", [12, 20, 33])
def test_a_live_terminal_gets_lines_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, columns: int, piece: int
) -> None:
    text = (
        "The quick brown fox jumps over\nthe lazy dog. Donaudampfschiffahrtsgesellschaft, she said."
    )
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    writer = AnswerWriter()
    for start in range(0, len(text), piece):
        writer.write(text[start : start + piece])
    lines = drawn(screen.getvalue(), columns)
    assert " ".join("".join(lines).split()) != ""
    assert all(len(line) < columns for line in lines)
    whole = {word for word in re.split(r"\s", text) if len(word) < columns - 1}
    assert whole <= {word for line in lines for word in line.split()}
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_no_color_and_pipes_get_the_text_unbroken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", pipe := io.StringIO())
    AnswerWriter().write("a long line that is longer than twenty", "\x1b[1m")
    assert pipe.getvalue() == "a long line that is longer than twenty"


def test_facts_are_broken_between_facts_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = ["first fact", "second fact", "third fact"]
    note_facts("done", facts)
    assert capsys.readouterr().err == "done: first fact · second fact · third fact\n"
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "32")
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    note_facts("done", facts)
    assert screen.getvalue() == "done: first fact · second fact ·\n  third fact\n"
