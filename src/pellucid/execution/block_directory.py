"""The block directory: block files on disk, which several processes may share."""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import get_ident

import numpy as np

from pellucid.backends.ops import BlockBytes
from pellucid.execution.block_file import DamagedBlockError, ForeignBlockError

SUFFIX = ".kv"
_FORMAT_NAME = re.compile(r"[0-9a-f]{32}")
_BLOCK_NAME = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}")
_PARTIAL_NAME = re.compile(r"\.[0-9a-f]{64}\.\d+-\d+\.partial")
# Files are removed when they exceed the bound, until this fraction of it is left, so that it happens rarely.
_KEPT_FRACTION = 0.875
# Other processes write too: files are counted again after this process has written this fraction of the bound.
_COUNTED_FRACTION = 1 / 16
_ABANDONED_SECONDS = 3600  # age of a partial file whose writer must have died


class BlockDirectory:
    """Files named after block hashes, in a folder for each format; the least recently used are removed first.

    Another process may remove any file at any time. Files and folders with other names than those of this
    class are never touched.

    Args:
        root: created for this user alone if it does not exist.
        fingerprint: of the format; names the folder.
        file_bytes: of every file in that folder.
        max_bytes: of all files of all formats. Other processes may pass it by a sixteenth each
            before the next one to write sees it.

    Raises:
        ValueError: others may write to `root`, or the bound is less than a file.
        OSError: the directory cannot be made or read.
    """

    def __init__(self, root: Path, fingerprint: bytes, file_bytes: int, max_bytes: int) -> None:
        if file_bytes > max_bytes:
            raise ValueError(
                f"prefix_cache_bytes={max_bytes}: must hold a block of {file_bytes} bytes"
            )
        self.file_bytes = file_bytes
        self._root = root
        self._max_bytes = max_bytes
        self._folder = root / fingerprint.hex()[:32]
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise ValueError(f"prefix_store={str(root)!r}: is not a directory") from None
        _check_private(root)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._total_bytes: int | None = None  # when last counted; None: not yet
        self._written_bytes = 0  # since then

    def name(self, block_hash: bytes) -> str:
        return str(self.path(block_hash))

    def path(self, block_hash: bytes) -> Path:
        return self._folder / (block_hash.hex() + SUFFIX)

    def has(self, block_hash: bytes) -> bool:
        return self.path(block_hash).exists()

    def read(self, block_hash: bytes) -> BlockBytes | None:
        """All bytes of a file, and marks it as used now; None if there is no such file.

        Raises:
            DamagedBlockError: it does not have the size of block files.
            ForeignBlockError: it is a link, a folder or the like.
        """
        path = self.path(block_hash)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:  # ELOOP: a link
            raise ForeignBlockError(error.strerror) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):  # of a folder no file object can be made
                raise ForeignBlockError("is not a file")
            if status.st_size != self.file_bytes:
                raise DamagedBlockError(f"has {status.st_size} bytes instead of {self.file_bytes}")
            data = np.empty(self.file_bytes, np.uint8)
            os.readv(fd, [data.data])  # a file that is cut off by now has a wrong checksum
            os.utime(fd)
        finally:
            os.close(fd)
        return data

    def write(self, block_hash: bytes, parts: Iterable[bytes | memoryview]) -> bool:
        """Writes a file under a temporary name and renames it; then removes files beyond the bound. Returns True.

        Raises:
            OSError: it cannot be written.
        """
        partial = self._folder / f".{block_hash.hex()}.{os.getpid()}-{get_ident()}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
                file.writelines(parts)
            partial.replace(self.path(block_hash))
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._written_bytes += self.file_bytes
        self._keep_bound()
        return True

    def remove(self, block_hash: bytes) -> None:
        self.path(block_hash).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""

    def _keep_bound(self) -> None:
        if (
            self._total_bytes is not None
            and self._total_bytes + self._written_bytes <= self._max_bytes
            and self._written_bytes <= self._max_bytes * _COUNTED_FRACTION
        ):
            return
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in files)
        if total > self._max_bytes:
            for path, status in files:
                if total <= self._max_bytes * _KEPT_FRACTION:
                    break
                path.unlink(missing_ok=True)
                total -= status.st_size
        self._total_bytes, self._written_bytes = total, 0

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """All block files of all formats. Removes partial files of writers that have ended."""
        for folder in _entries(self._root):
            if _FORMAT_NAME.fullmatch(folder.name) is None or not folder.is_dir(
                follow_symlinks=False
            ):
                continue
            for entry in _entries(Path(folder.path)):
                try:
                    status = entry.stat(follow_symlinks=False)
                    if _PARTIAL_NAME.fullmatch(entry.name) and _is_abandoned(status):
                        Path(entry.path).unlink()
                except FileNotFoundError:  # another engine has removed it
                    continue
                if _BLOCK_NAME.fullmatch(entry.name):
                    yield Path(entry.path), status


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _is_abandoned(status: os.stat_result) -> bool:
    return time.time() - status.st_mtime > _ABANDONED_SECONDS


def _check_private(root: Path) -> None:
    """A user who can write here can change answers, and a user who can read here can read prompts."""
    status = root.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ValueError(
            f"prefix_store={str(root)!r}: belongs to user {status.st_uid} with mode"
            f" {stat.S_IMODE(status.st_mode):o}; it must be yours, and no other user may write to it"
        )
