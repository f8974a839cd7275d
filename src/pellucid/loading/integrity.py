"""Checks a model directory against its SHA256SUMS, as `sha256sum` writes it."""

import hashlib
import re
from pathlib import Path

SUMS_FILE = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
_CHUNK_BYTES = 1 << 20
_MAX_SHOWN = 120  # characters of a line in a message


def verify_checksums(directory: Path) -> None:
    """Compares each file that SHA256SUMS lists with its digest, if there is a SHA256SUMS.

    A flipped bit inside a weight is a valid weight: only this check can see it. A listed file that
    is not there is passed over, since a download leaves out what nobody reads; whoever reads it
    will miss it.

    Raises:
        ValueError: a file differs, or a line is not as `sha256sum` writes it.
    """
    sums = directory / SUMS_FILE
    if not sums.exists():
        return
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{sums}: line {number} is {line[:_MAX_SHOWN]!r}: must be a SHA-256 digest, "
                "two blanks and a file name"
            )
        digest, name = match.groups()
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{sums}: line {number} names {name!r}: must be a file beside it")
        path = directory / name
        if path.is_file() and (actual := _sha256(path)) != digest.lower():
            raise ValueError(f"{path}: damaged: its SHA-256 is {actual}, {SUMS_FILE} says {digest}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
