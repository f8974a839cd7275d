"""SHA-256 of a checkpoint's files: compared with SHA256SUMS, and used as the checkpoint's identity."""

import hashlib
import os
import re
from pathlib import Path

from pellucid.inputs.parameter_checks import shown
from pellucid.loading.files import open_regular, read_bytes
from pellucid.loading.gguf_names import part_names

SUMS_FILE = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
_MAX_SUMS_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20

_SAMPLES, _SAMPLE_BYTES = 64, 4096
_PATTERNS = ("*.safetensors", "*.json")


def verify_checksums(directory: Path) -> None:
    """Compares each file that SHA256SUMS lists with its digest, if there is a SHA256SUMS.

    A flipped bit turns a weight into another valid weight: only this check can find it. A listed file that is
    missing is skipped: downloads leave out files that loading does not read, and loading reports a
    missing file that it does read.

    Raises:
        ValueError: a file differs, or a line is not as `sha256sum` writes it.
    """
    sums = directory / SUMS_FILE
    if not sums.exists():
        return
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
    actual: dict[tuple[int, int], str] = {}  # a file with several names is read once
    for path, digest in expected.items():
        if not path.is_file():
            continue
        status = path.stat()
        file_id = (status.st_dev, status.st_ino)
        if file_id not in actual:
            actual[file_id] = _sha256(path)
        if actual[file_id] != digest:
            raise ValueError(
                f"{path}: damaged: its SHA-256 is {actual[file_id]}, {SUMS_FILE} says {digest}"
            )


def weights_identity(path: Path) -> bytes:
    """32 bytes that differ between checkpoints: of each file its name, size, time of change, and 64
    samples of 4 KiB, spread evenly from its beginning to its end.

    A copy of a checkpoint with new file times counts as another checkpoint. A change is missed only if weights
    were changed in place between the samples and the file's time was set back.

    Args:
        path: a directory in Hugging Face layout, a GGUF file, or a part of a split one.

    Raises:
        ValueError: a file is not a regular file.
        OSError: a file cannot be read.
    """
    files = [path.with_name(name) for name in part_names(path.name)]
    if path.is_dir():
        files = sorted(file for pattern in _PATTERNS for file in path.glob(pattern))
    digest = hashlib.sha256()
    for file in files:
        _add_samples(digest, file)
    return digest.digest()


def _add_samples(digest: "hashlib._Hash", path: Path) -> None:
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        digest.update(repr((path.name, status.st_size, status.st_mtime_ns)).encode())
        last = max(0, status.st_size - _SAMPLE_BYTES)
        for index in range(_SAMPLES):
            file.seek(last * index // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK_BYTES)
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
