"""What is refused and how, in golden files: a line has a case and its whole message."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from support.golden_files import compare, shortened

FOLDER = Path(__file__).parents[1] / "golden/refusals"


def check_refusals(
    file: str,
    cases: Iterable[Any],
    call: Callable[[Any], object],
    *,
    name: Callable[[Any], str] = repr,
    hidden: Path | str | tuple[Path | str, ...] = (),
) -> None:
    """Each case is refused with a ValueError whose message is that of the golden file.

    Args:
        file: of the golden folder, without its ending.
        cases: what `call` must refuse.
        name: of a case; empty: the message tells.
        hidden: what of the messages differs from run to run.
    """
    lines = []
    for case in cases:
        with pytest.raises(ValueError, match=r"\w") as refused:
            call(case)
        message = str(refused.value)
        for text in hidden if isinstance(hidden, tuple) else (hidden,):
            message = message.replace(str(text), "...")
        lines.append(f"{shortened(named)} -> {message}" if (named := name(case)) else message)
    compare(FOLDER / f"{file}.txt", lines)
