"""Offloaded blocks: block contents and recurrent states in the swap file or the prefix store."""

from collections.abc import Collection

from pellucid.scheduling.prefix_reads import PrefixReads
from pellucid.scheduling.swapped_blocks import SwappedBlocks


class OffloadedBlocks:
    """The two places outside of the pool in which a waiting request may find its blocks.

    Args:
        num_swap_slots: blocks that the swap file holds; 0: there is no swap file.
        max_read_blocks: most blocks of the prefix store that are being read or wait for their request; 0: there is
            no prefix store.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a request, rounded up.

    Attributes:
        swapped: blocks in the swap file, each for its own request.
        stored: blocks of the prefix store, for all requests.
    """

    def __init__(
        self, num_swap_slots: int = 0, max_read_blocks: int = 0, blocks_per_state: int = 0
    ) -> None:
        self.blocks_per_state = blocks_per_state
        self.swapped = SwappedBlocks(num_swap_slots, blocks_per_state)
        self.stored = PrefixReads(max_read_blocks, blocks_per_state)

    def drop(self, request_id: str) -> None:
        """Forgets what is kept of a request."""
        self.swapped.drop(request_id)
        self.stored.drop(request_id)

    def check_integrity(self, request_ids: Collection[str]) -> None:
        """`request_ids`: of all unfinished requests with a block table."""
        self.swapped.check_integrity(request_ids)
        self.stored.check_integrity(request_ids)
