"""A file's bytes in memory, without reading them first."""

import mmap
from pathlib import Path

import numpy as np


class MappedFile:
    """A read-only view of a file that is not empty. The file must not be cut short while it is open.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.bytes = np.frombuffer(self._map, np.uint8)

    def release(self, start: int, end: int) -> None:
        """Gives back the memory behind these bytes, once they have been copied to where they are used.

        They may be read again, then from the file. Otherwise a model would take its memory twice.
        """
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # neighbours may share the outer pages
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
