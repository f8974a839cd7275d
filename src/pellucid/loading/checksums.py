"""SHA256SUMS beside a checkpoint: the digests that its files must have."""

import re
from pathlib import Path

from pellucid.inputs.parameter_checks import shown
from pellucid.loading.file_digests import file_digest
from pellucid.loading.files import read_bytes

SUMS_FILE = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
_MAX_SUMS_BYTES = 1 << 20


def verify_checksums(directory: Path) -> None:
    """Compares each file that SHA256SUMS lists with its digest, if there is a SHA256SUMS.

    A flipped bit turns a weight into another valid weight: only this check can find it. A listed file that is
    missing is skipped: downloads leave out files that loading does not read, and loading reports a
    missing file that it does read.

    Raises:
        ValueError: a file differs, or a line is not as `sha256sum` writes it.
    """
    expected = listed_digests(directory)
    actual: dict[tuple[int, int], str] = {}  # a file with several names is read once
    for path, digest in expected.items():
        if not path.is_file():
            continue
        status = path.stat()
        file_id = (status.st_dev, status.st_ino)
        if file_id not in actual:
            actual[file_id] = file_digest(path)
        if actual[file_id] != digest:
            raise ValueError(
                f"{path}: damaged: its SHA-256 is {actual[file_id]}, {SUMS_FILE} says {digest}"
            )


def listed_digests(directory: Path) -> dict[Path, str]:
    """The digests of SHA256SUMS by file, in hexadecimal digits; none without SHA256SUMS.

    Raises:
        ValueError: a line is not as `sha256sum` writes it.
    """
    sums = directory / SUMS_FILE
    if not sums.exists():
        return {}
    expected: dict[Path, str] = {}
    lines = read_bytes(sums, _MAX_SUMS_BYTES).decode(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{sums}: line {number} is {shown(line)}: must be a SHA-256 digest, "
                "two spaces and a file name"
            )
        digest, name = match.groups()
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{sums}: line {number} names {shown(name)}: must be a file beside it")
        path = directory / name
        if expected.setdefault(path, digest.lower()) != digest.lower():
            raise ValueError(
                f"{sums}: line {number} gives {shown(name)} another digest than a line before"
            )
    return expected
