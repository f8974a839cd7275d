"""One hostile input: how it is made, and the function of pellucid that gets it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_INPUT_BYTES = 10 << 20


@dataclass(frozen=True)
class Case:
    """An input that must be refused with a ValueError, in bounded time and memory.

    Args:
        name: unique; "area: what is wrong".
        make: makes the input in an empty directory; its cost is not counted.
        enter: gives the input to pellucid; its cost is.
        may_succeed: pellucid may also accept the input; its cost is bounded all the same.
    """

    name: str
    make: Callable[[Path], Any]
    enter: Callable[[Any], object]
    may_succeed: bool = False
