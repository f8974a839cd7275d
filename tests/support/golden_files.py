"""Checked-in files of what code writes; UPDATE_GOLDEN=1 writes them again: read the difference before you commit it."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

SHOWN_CHARS = 72


def compare(file: Path, lines: Sequence[str]) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert [*lines] == file.read_text(encoding="utf-8").split("\n")[:-1]


def shortened(text: str) -> str:
    """The beginning of a long text, and what tells whether the rest is the same."""
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}... {hashlib.sha256(text.encode()).hexdigest()[:8]}"
