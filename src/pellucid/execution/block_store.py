"""Where block files are kept: the interface of a directory and of a server."""

from collections.abc import Iterable
from typing import Protocol

from pellucid.backends.ops import BlockBytes


class BlockStore(Protocol):
    """Block files by the hash of their block. Others may change, add and remove any of them at any time.

    Attributes:
        file_bytes: of every file.
    """

    @property
    def file_bytes(self) -> int: ...

    def name(self, block_hash: bytes) -> str:
        """Where a file is, for people."""

    def has(self, block_hash: bytes) -> bool: ...

    def read(self, block_hash: bytes) -> BlockBytes | None:
        """All bytes of a file, which counts as used now; None if there is no such file.

        Raises:
            DamagedBlockError: it does not have the size of block files.
            ForeignBlockError: it is no file at all.
            OSError: it cannot be read.
        """

    def write(self, block_hash: bytes, parts: Iterable[bytes | memoryview]) -> bool:
        """Writes a whole file. Returns False if the store is away for the moment.

        Raises:
            OSError: it cannot be written, and neither could the next one.
        """

    def remove(self, block_hash: bytes) -> None: ...

    def close(self) -> None:
        """Nothing is read or written any more."""
