"""stdout is the answer and nothing else; everything else is a line on stderr."""

import sys

# What a model writes may hold escape sequences, which would drive the reader's terminal: controls
# other than newline and tab are shown as their pictures, C1 controls as a replacement character.
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def write_text(text: str) -> None:
    """Writes a piece of the answer on stdout, at once: as it is, unless a terminal shows it."""
    if text:
        sys.stdout.write(text.translate(_VISIBLE) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def note(line: str) -> None:
    """Writes a line about the answer on stderr."""
    print(line.translate(_VISIBLE), file=sys.stderr, flush=True)
