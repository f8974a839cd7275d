"""Writes answers and tables on stdout and everything else on stderr; defines the exit statuses."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import IO

from rich.cells import cell_len

from pellucid.progress import is_live

EXIT_FAILED = 1  # the request failed while it ran
EXIT_USAGE = 2  # what was asked for cannot be served
EXIT_INTERRUPTED = 128 + 2  # what a shell reports for SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # ... and for SIGPIPE
EXIT_BY_FINISH_REASON = {"stop": 0, "length": 0, "error": EXIT_FAILED, "abort": EXIT_INTERRUPTED}

MAX_TEXT_WIDTH = 100  # characters: longer lines are hard to read
GAP = 2  # characters between columns of a table
PIPE_WIDTH = 80  # characters, where stdout is no terminal
BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"

# What a model writes may hold escape sequences, which would drive the reader's terminal: controls
# other than newline and tab are shown as their pictures, C1 controls as a replacement character.
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def open_missing_streams() -> None:
    """Makes stdin, stdout and stderr usable, whatever the caller has closed.

    Without stderr, notes are dropped. A locale without the characters of a text
    shows them as \\u...: not a reason to fail.

    Raises:
        ValueError: stdout is closed.
    """
    if sys.stdin is None:
        sys.stdin = open(_devnull_at(0), encoding="utf-8")  # noqa: SIM115 (until the process ends)
    is_stdout_closed = sys.stdout is None
    if is_stdout_closed:
        _devnull_at(1)  # or the next file that is opened would be stdout
    if sys.stderr is None:
        sys.stderr = open(_devnull_at(2), "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if is_stdout_closed:
        raise ValueError("stdout is closed: there is nowhere to write to")


def give_up_stdout() -> None:
    """Drops what cannot be written on stdout: the interpreter would fail on it again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _devnull_at(descriptor: int) -> int:
    """Opens /dev/null as a descriptor that is closed."""
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return descriptor


def visible(text: str) -> str:
    """Text that drives no terminal: controls other than newline and tab are replaced."""
    return text.translate(_VISIBLE)


def write_text(text: str) -> None:
    """Writes a piece of the answer on stdout, at once: as it is, unless a terminal shows it."""
    if text:
        sys.stdout.write(text.translate(_VISIBLE) if sys.stdout.isatty() else text)
        sys.stdout.flush()


class AnswerWriter:
    """Writes an answer on stdout piece by piece. A live terminal gets lines broken between words; a
    pipe gets the text as it is."""

    def __init__(self) -> None:
        self.is_live = is_live(sys.stdout)
        self._column = 0  # of the cursor
        self._word = ""  # the incomplete word between the last space and the cursor

    def write(self, text: str, style: str = "") -> None:
        """Writes a piece at once; its style is an escape sequence, for live terminals only."""
        if not text:
            return
        if not self.is_live:
            write_text(text)
            return
        shown = "".join(self._place(character) for character in text.translate(_VISIBLE))
        sys.stdout.write(f"{style}{shown}{RESET}" if style else shown)
        sys.stdout.flush()

    def end_line(self) -> None:
        """What stderr gets next begins a new line, where it goes to the same terminal or file as the answer."""
        if sys.stdout.isatty() or _is_one_file(sys.stdout, sys.stderr):
            write_text("\n")

    def _place(self, character: str) -> str:
        """The character, and before it a new line for the word that it makes too long."""
        columns = shutil.get_terminal_size().columns
        if character == "\n":
            self._column, self._word = 0, ""
            return character
        if character in " \t":
            width = 1 if character == " " else 8 - self._column % 8
            self._word = ""
            if self._column + width >= columns:
                self._column = 0
                return "\n"
            self._column += width
            return character
        width = cell_len(character)
        moved = ""
        if self._column + width >= columns:
            length = cell_len(self._word)
            if length == self._column:  # longer than a line
                moved, self._word, self._column = "\n", "", 0
            else:
                back = f"\x1b[{length}D\x1b[K" if length else ""
                moved, self._column = f"{back}\n{self._word}", length
        self._word += character
        self._column += width
        return moved + character


def _is_one_file(first: IO[str], second: IO[str] | None) -> bool:
    """Whether what is written on both streams ends up in one file or pipe, as after 2>&1."""
    try:
        numbers = [stream.fileno() for stream in (first, second) if stream is not None]
    except (OSError, ValueError):  # in memory, or closed
        return False
    return len(numbers) == 2 and os.path.sameopenfile(*numbers)


def note(line: str) -> None:
    """Writes a line about the answer on stderr."""
    print(line.translate(_VISIBLE), file=sys.stderr, flush=True)


def note_all(sentences: Sequence[str]) -> None:
    """Writes what people should know of a model, a line for each sentence, on stderr."""
    for sentence in sentences:
        note(f"note: {sentence}")


def shows_rows() -> bool:
    """Whether stderr is a terminal, which breaks long lines anywhere."""
    return sys.stderr.isatty()


def note_facts(label: str, facts: Sequence[str]) -> None:
    """Writes facts about the answer on stderr: one line, which a terminal breaks between facts."""
    line = f"{label}: {' · '.join(facts)}".translate(_VISIBLE)
    if shows_rows():
        line = "\n".join(_lines_of_facts(label, facts, shutil.get_terminal_size().columns))
    print(f"{DIM}{line}{RESET}" if is_live(sys.stderr) else line, file=sys.stderr, flush=True)


def _lines_of_facts(label: str, facts: Sequence[str], width: int) -> list[str]:
    lines = [f"{label}: "]
    for index, fact in enumerate(facts):
        shown = fact.translate(_VISIBLE) + (" · " if index + 1 < len(facts) else "")
        if len(lines[-1].rstrip()) > len(label) + 1 and len(lines[-1] + shown.rstrip()) > width:
            lines.append("  ")
        lines[-1] += shown
    return [line.rstrip() for line in lines]


def page_width() -> int:
    """Characters in a line of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def wrapped(text: str) -> str:
    """A paragraph that fits stdout."""
    return textwrap.fill(" ".join(text.split()), min(page_width(), MAX_TEXT_WIDTH))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes a table on stdout whose first column is names and whose others are numbers. Where it would
    be too wide, titles are broken between words; rows never are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    cells = [max((cell_len(row[index]) for row in rows), default=0) for index in range(len(titles))]
    titles = _narrowed(titles, cells, page_width() - GAP * (len(titles) - 1))
    live = is_live(sys.stdout)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(
        file=sys.stdout,
        force_terminal=live,
        color_system="auto" if live else None,
        width=1000,  # rows are never broken
    )
    console.print(table)


def _narrowed(titles: Sequence[str], cells: Sequence[int], width: int) -> list[str]:
    """Titles on as few lines as make the columns fit into `width` characters, or on as many as they have
    words.

    Args:
        cells: the width of each column's widest cell.
    """
    most_words = max(len(title.split()) for title in titles)
    for num_lines in range(1, most_words + 1):
        broken = [_on_lines(title, num_lines) for title in titles]
        widths = [max(map(len, lines)) for lines in broken]
        if sum(map(max, widths, cells)) <= width:
            break
    return ["\n".join(lines) for lines in broken]


def _on_lines(title: str, num_lines: int) -> list[str]:
    """A title on at most so many lines, as narrow as they can be."""
    for width in range(max(map(len, title.split()), default=1), len(title)):
        lines = textwrap.wrap(title, width)
        if len(lines) <= num_lines:
            return lines
    return [title]
