"""Writes a generated file, or checks that it is up to date: shared by the scripts beside it."""

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Writes the file, or with --check on the command line only says whether it is stale.

    Returns:
        The exit status: 1 if it is.
    """
    if "--check" not in sys.argv[1:]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path.name} is stale: run python docs/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1
