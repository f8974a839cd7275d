"""The swap file: KV blocks of preempted requests, in a file of fixed size."""

import os
import tempfile
import weakref
from pathlib import Path

import numpy as np

from pellucid.backends.ops import BlockBytes


class SwapFile:
    """Slots of one block each, in a file without a name: the system deletes it when the process ends.

    Args:
        num_slots: at least 1.
        bytes_per_block: of all layers.
        directory: of the file; None: the system's directory for temporary files.

    Attributes:
        close: deletes the file; nothing else may be called after it.

    Raises:
        OSError: there is no room for all slots. All room is reserved at once, so that no write can fail later.
    """

    def __init__(self, num_slots: int, bytes_per_block: int, directory: Path | None = None) -> None:
        assert num_slots >= 1 and bytes_per_block >= 1
        self.num_slots = num_slots
        self.bytes_per_block = bytes_per_block
        with tempfile.TemporaryFile(dir=directory) as file:
            _reserve(file.fileno(), num_slots * bytes_per_block)
            self._fd = os.dup(file.fileno())
        # Also when the object is collected, but not at exit, when the system does it.
        self.close = weakref.finalize(self, os.close, self._fd)
        self.close.atexit = False

    def write(self, slot: int, data: BlockBytes) -> None:
        """Puts a block [bytes_per_block] into a slot."""
        assert 0 <= slot < self.num_slots and data.shape == (self.bytes_per_block,)
        rest, offset = data.data, slot * self.bytes_per_block
        while rest:  # a signal or a limit of the system may cut a write short
            written = os.pwrite(self._fd, rest, offset)
            rest, offset = rest[written:], offset + written

    def read(self, slot: int) -> BlockBytes:
        """The block last written into a slot, [bytes_per_block]."""
        assert 0 <= slot < self.num_slots
        data = np.empty(self.bytes_per_block, np.uint8)
        rest, offset = data.data, slot * self.bytes_per_block
        while rest:
            num_read = os.preadv(self._fd, [rest], offset)
            assert num_read > 0  # the file has its full size
            rest, offset = rest[num_read:], offset + num_read
        return data


def _reserve(fd: int, num_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, num_bytes)
    else:  # macOS
        os.truncate(fd, num_bytes)
