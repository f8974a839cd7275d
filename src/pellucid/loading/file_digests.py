"""SHA-256 digests of files. A cache file keeps them, so each file is read once."""

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pellucid.loading.cache_file import cache_path, write_cache_file
from pellucid.loading.files import open_regular

MAX_KEPT = 4096  # digests; the newest
# A file that is written to once more so soon after its last change can have the same times.
SETTLED_NANOSECONDS = 2_000_000_000
_CHUNK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


def file_digest(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits; reads all of it.

    Raises:
        ValueError: it is not a regular file.
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK_BYTES)
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def kept_digests(paths: Sequence[Path]) -> list[str]:
    """The digest of each file. It is read if its digest is not kept, or if it has changed since.

    A kept digest belongs to a device, an inode, a size, and the times at which content and inode changed last. If the
    digests cannot be kept, they are computed each time.

    Raises:
        ValueError: a file is not a regular file.
        OSError: a file cannot be read.
    """
    kept = _read()
    digests: list[str] = []
    added: dict[str, str] = {}
    for path in paths:
        status = path.stat()
        state = _state(status)
        digest = kept.get(state)
        if digest is None:
            digest = file_digest(path)
            changed = max(status.st_mtime_ns, status.st_ctime_ns)
            if time.time_ns() - changed > SETTLED_NANOSECONDS:
                added[state] = digest
        digests.append(digest)
    if added:
        with suppress(OSError):  # another process may have added others since
            newest = [*(_read() | added).items()][-MAX_KEPT:]
            write_cache_file(_path(), dict(newest))
    return digests


def _path() -> Path:
    return cache_path("digests.json")


def _state(status: os.stat_result) -> str:
    numbers = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return ":".join(map(str, numbers))


def _read() -> dict[str, str]:
    """The digests that are kept, by the states of their files; none if the cache file is missing or damaged."""
    try:
        stored = json.loads(_path().read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {
        state: digest
        for state, digest in stored.items()
        if isinstance(digest, str) and _DIGEST.fullmatch(digest)
    }
