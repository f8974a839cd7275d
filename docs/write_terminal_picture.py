"""Writes docs/terminal.svg, the picture in README.md: real sessions in a terminal 80 columns wide.

    python docs/write_terminal_picture.py

`make chat-real` fetches SmolLM2 if it is not there yet.
"""

import fcntl
import io
import itertools
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

PICTURE = Path(__file__).with_name("terminal.svg")
COLUMNS, ROWS = 80, 60
COLOURS = {"default": None, "brown": "yellow"}  # pyte's names that rich does not know
PROMPT = "> "  # of the chat
CTRL_D = "\x04"


@dataclass(frozen=True)
class Session:
    """A command, and what is typed each time that its prompt is shown."""

    command: str
    typed: tuple[str, ...] = ()


SESSIONS = (
    Session(
        "make chat-real",
        (
            "What is the capital of France?\r",
            "What is it known for? Answer in one sentence.\r",
            CTRL_D,
        ),
    ),
    Session('pellucid explain "Once upon a time" --max-tokens 40 --seed 1'),
)


class Screen(pyte.Screen):
    """A screen that answers a program's questions about the terminal, such as where its cursor is."""

    def __init__(self, terminal: int) -> None:
        super().__init__(COLUMNS, ROWS)
        self._terminal = terminal

    def write_process_input(self, data: str) -> None:
        os.write(self._terminal, data.encode())

    @property
    def awaits_input(self) -> bool:
        line = self.display[self.cursor.y]
        return self.cursor.x == len(PROMPT) and line.rstrip() == PROMPT.rstrip()


def screen_after(session: Session) -> Screen:
    """What a terminal shows when a command has ended."""
    master, terminal = pty.openpty()
    screen = Screen(master)
    stream = pyte.ByteStream(screen)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        shlex.split(session.command),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        to_type = list(session.typed)
        while data := _read(master):
            stream.feed(data)
            if to_type and screen.awaits_input:
                os.write(master, to_type.pop(0).encode())
    os.close(master)
    if process.returncode != 0:
        raise SystemExit(f"{session.command}: ended with status {process.returncode}")
    return screen


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux says so when the other side is closed
        return b""


def lines_of(screen: Screen) -> list[Text]:
    """Its lines, up to the last one that is not empty, with their colours."""
    lines = []
    for row in range(ROWS):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        pieces = itertools.groupby(cells, key=_style)  # fewer pieces make a smaller picture
        line = Text.assemble(
            *(("".join(cell.data for cell in piece), style) for style, piece in pieces)
        )
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _style(cell: pyte.screens.Char) -> Style:
    colour = COLOURS.get(cell.fg, cell.fg)
    if colour is not None and re.fullmatch("[0-9a-f]{6}", colour):
        colour = f"#{colour}"
    return Style(color=colour, bold=cell.bold, italic=cell.italics)


def draw(sessions: list[tuple[str, list[Text]]]) -> str:
    """The commands and what they showed, as SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command, lines in sessions:
        console.print(Text("$ ", Style(color="green", bold=True)) + Text(command))
        for line in lines:
            console.print(line, no_wrap=True, crop=True)
        console.print()
    svg = console.export_svg(title="pellucid", unique_id="pellucid")
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)


def main() -> None:
    sessions = [(session.command, lines_of(screen_after(session))) for session in SESSIONS]
    PICTURE.write_text(draw(sessions))


if __name__ == "__main__":
    main()
