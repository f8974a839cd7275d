"""Opens and maps the files of a checkpoint: regular files only, up to a limit of size."""

import mmap
import os
import stat
from io import BufferedReader
from pathlib import Path

import numpy as np

_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"


def open_regular(path: Path) -> BufferedReader:
    """Opens a file for reading.

    Raises:
        ValueError: there is no such file; or it is not a regular file (reading a FIFO waits for a writer, and a
            device such as /dev/zero never ends); or it is a pointer of Git LFS, without the content.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path}: must be a regular file, not {_kind_of_file(path)}")
    file = os.fdopen(descriptor, "rb")
    if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
        file.close()
        raise ValueError(
            f"{path}: is a pointer of Git LFS, not the file itself: run `git lfs install` and"
            f" `git lfs pull` in {path.parent}, or download the model with `hf download`"
        )
    file.seek(0)
    return file


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a file of at most `max_bytes` bytes.

    Raises:
        ValueError: the file is longer, or as `open_regular`.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(content) > max_bytes:
        raise ValueError(
            f"{path}: has {max(size, len(content))} bytes: at most {max_bytes} are allowed"
        )
    return content


class MappedFile:
    """A read-only view of a file that is not empty. The file must not be truncated while it is open.

    Args:
        path: the file.

    Raises:
        ValueError: as `open_regular`.
        OSError: it cannot be mapped.
    """

    def __init__(self, path: Path) -> None:
        with open_regular(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        self.bytes = np.frombuffer(self._map, np.uint8)

    def release(self, start: int, end: int) -> None:
        """Frees the memory of these bytes of the file after they have been copied elsewhere. Otherwise a model
        would take its memory twice. They may be read again, then from the file.
        """
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # neighbours may share the outer pages
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def _kind_of_file(path: Path) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(path.stat().st_mode), "a special file")
