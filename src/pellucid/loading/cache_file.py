"""Files in the user's folder for caches: what is lost there is measured or computed again."""

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
    """Replaces the file, which holds `value` as JSON, as a whole.

    Raises:
        OSError: it cannot be written.
    """
    write_cache_bytes(path, json.dumps(value).encode())


def write_cache_bytes(path: Path, data: bytes) -> None:
    """Replaces the file as a whole: another process reads the old content or the new one.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
