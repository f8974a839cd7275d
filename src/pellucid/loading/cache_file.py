"""JSON files in the user's folder for caches: what is lost there is measured or computed again."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def cache_path(name: str) -> Path:
    """Where the cache file of this name is: in $XDG_CACHE_HOME or ~/.cache."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "pellucid" / name


def write_cache_file(path: Path, value: Any) -> None:
    """Replaces the file as a whole.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
