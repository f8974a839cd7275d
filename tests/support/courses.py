"""What random traces did, beside what a checked-in file says: a change that is to change no decision changes no line.

A line counts the work of a trace, and ends with a digest of all that was seen in it. UPDATE_COURSES=1 writes the lines
of the traces that run: read the difference before you commit it.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

GOLDEN = Path(__file__).parents[1] / "golden"


class Courses:
    """The lines of one file, by seed."""

    def __init__(self, name: str) -> None:
        self._path = GOLDEN / f"{name}.txt"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._lines = {int(line.split(":")[0]): line for line in lines}

    def total(self, what: str) -> int:
        """How often something happened in all traces."""
        found = (re.search(rf"(\d+) {what}[,;]", line) for line in self._lines.values())
        return sum(int(each.group(1)) for each in found if each is not None)

    def check(self, seed: int, counts: Mapping[str, int], seen: Sequence[object]) -> None:
        """Compares a trace with its line; a seed without a line was drawn.

        Args:
            counts: of its work.
            seen: plain data.
        """
        digest = hashlib.sha256(json.dumps(plain(seen), sort_keys=True).encode()).hexdigest()[:12]
        named = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        line = f"{seed}: {named}; {digest}"
        if os.environ.get("UPDATE_COURSES") == "1":
            self._lines[seed] = line
            self._path.write_text("".join(f"{self._lines[key]}\n" for key in sorted(self._lines)))
        assert line == self._lines.get(seed, line)


def plain(value: Any) -> Any:
    """With numbers to six digits: the last ones are the machine's."""
    match value:
        case None | str() | int():
            return value
        case float():
            return f"{value:.6g}"
        case list() | tuple():
            return [plain(each) for each in value]
        case Struct():
            return plain(structs.asdict(value))
        case Mapping():  # last: it takes longest to ask
            return {str(key): plain(each) for key, each in value.items()}
    return str(value)
