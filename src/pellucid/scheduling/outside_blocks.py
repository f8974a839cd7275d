"""Contents of blocks that the pool has given away."""

from collections.abc import Iterable

from pellucid.scheduling.block_key import BlockKey
from pellucid.scheduling.block_ops import LoadBlock, SaveBlock, SwapIn, SwapOut
from pellucid.scheduling.block_table import BlockTable
from pellucid.scheduling.prefix_store import PrefixStore
from pellucid.scheduling.swap_slots import SwapSlots


class OutsideBlocks:
    """The swap file, where a preempted request keeps what it gave back, and the prefix store, where
    everyone finds what anyone has computed. Says what is to be moved; nothing if there is neither.

    Args:
        prefix_store: None if there is none.
        num_swap_slots: 0 if there is no swap file.
    """

    def __init__(self, prefix_store: PrefixStore | None, num_swap_slots: int) -> None:
        self._prefix_store = prefix_store
        self._swap_slots = SwapSlots(num_swap_slots)

    def save(self, block_id: int, key: BlockKey) -> SaveBlock | None:
        """Offers a block that has just become full to the store."""
        if self._prefix_store is None:
            return None
        return SaveBlock(block_id, key.block_hash, key.token_ids)

    def swap_out(self, table: BlockTable, index: int, block_id: int) -> SwapOut | None:
        """Keeps what was block `index` of a table, if a slot is free."""
        if (slot := self._swap_slots.take()) is None:
            return None
        table.swapped[index] = slot
        return SwapOut(block_id, slot)

    def bring_back(
        self, table: BlockTable, index: int, block_id: int, shared: bool
    ) -> SwapIn | LoadBlock | None:
        """Fills a block with what block `index` of a table is to hold, if it is kept.

        Args:
            shared: whether it may be what somebody else has computed.
        """
        if (slot := table.swapped.pop(index, None)) is not None:
            self._swap_slots.release(slot)
            return SwapIn(slot, block_id)
        if self._prefix_store is None or not shared:
            return None
        key = table.key(index)
        payload = self._prefix_store.find(key.block_hash, key.token_ids)
        return None if payload is None else LoadBlock(block_id, payload)

    def drop(self, table: BlockTable) -> None:
        """Forgets what is kept of a table in the swap file."""
        for slot in table.swapped.values():
            self._swap_slots.release(slot)
        table.swapped.clear()

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """`tables`: all that there are."""
        self._swap_slots.check_integrity([s for table in tables for s in table.swapped.values()])
