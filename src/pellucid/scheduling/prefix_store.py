"""What the control plane asks of a prefix cache outside of the block pool."""

from typing import Protocol


class PrefixStore(Protocol):
    """Blocks that outlive the pool. It gets them by `SaveBlock` and they come back by `LoadBlock`."""

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> object | None:
        """The contents of a block, read and verified; None if they are not there or not sound.

        Args:
            block_hash: of the block and of everything before it, within its salt.
            token_ids: of the block.
        """
        ...
