"""Block transfer: copies blocks and recurrent states, and moves them to and from the swap file and the
prefix store."""

from collections.abc import Sequence

import numpy as np

from pellucid.backends.ops import BlockBytes, KVCache
from pellucid.execution.prefix_store import DiskPrefixStore
from pellucid.execution.state_pieces import join_pieces, num_pieces, piece_hashes, split_state
from pellucid.execution.swap_file import SwapFile
from pellucid.scheduling.block_ops import (
    BlockOp,
    Copy,
    Load,
    Read,
    Save,
    Slot,
    SlotKind,
    SwapIn,
    SwapOut,
)


class BlockTransfer:
    """Moves blocks and recurrent states within a KV cache, and between the cache, the swap file and the prefix store.

    Args:
        kv_cache: holds the blocks and the states.
        prefix_store: None if scheduling has none.
        swap_file: the slots of swapped blocks; None if scheduling has no swap slots.
    """

    def __init__(
        self,
        kv_cache: KVCache,
        prefix_store: DiskPrefixStore | None = None,
        swap_file: SwapFile | None = None,
    ) -> None:
        self._kv_cache = kv_cache
        self._prefix_store = prefix_store
        self._swap_file = swap_file

    def run(self, ops: Sequence[BlockOp]) -> None:
        """Runs operations in order.

        Raises:
            OSError: the swap file cannot be read or written.
        """
        for op in ops:
            match op:
                case Copy(source, target):
                    self._copy(source, target)
                case Save():
                    self._save(op)
                case Read():
                    assert self._prefix_store is not None
                    self._prefix_store.start_reading(op)
                case Load(slot, payload):
                    assert isinstance(payload, np.ndarray | list)
                    self._write(slot, payload if isinstance(payload, list) else [payload])
                case SwapOut(slot, swap_slots):
                    assert self._swap_file is not None
                    for swap_slot, piece in zip(swap_slots, self._pieces(slot), strict=True):
                        self._swap_file.write(swap_slot, piece)
                case SwapIn(swap_slots, slot):
                    assert self._swap_file is not None
                    self._write(slot, [self._swap_file.read(each) for each in swap_slots])

    def _copy(self, source: Slot, target: Slot) -> None:
        assert source.kind is target.kind
        if source.kind is SlotKind.BLOCK:
            self._kv_cache.copy_block(source.id, target.id)
        else:
            self._kv_cache.copy_state(source.id, target.id)

    def _save(self, op: Save) -> None:
        """Saves a slot in the prefix store, if the store has room for all pieces."""
        assert self._prefix_store is not None
        cache, hashes = self._kv_cache, [op.block_hash]
        if op.slot.kind is SlotKind.STATES:
            count = num_pieces(cache.bytes_per_state, cache.bytes_per_block)
            hashes = piece_hashes(op.block_hash, count)
        if self._prefix_store.wants(hashes[0], len(hashes)):
            for piece_hash, piece in zip(hashes, self._pieces(op.slot), strict=True):
                self._prefix_store.save(piece_hash, op.token_ids, piece)

    def _pieces(self, slot: Slot) -> list[BlockBytes]:
        """What a slot holds, in pieces of the size of a block."""
        if slot.kind is SlotKind.BLOCK:
            return [self._kv_cache.read_block(slot.id)]
        return split_state(self._kv_cache.read_state(slot.id), self._kv_cache.bytes_per_block)

    def _write(self, slot: Slot, pieces: Sequence[BlockBytes]) -> None:
        if slot.kind is SlotKind.BLOCK:
            (data,) = pieces
            self._kv_cache.write_block(slot.id, data)
        else:
            data = join_pieces(pieces, self._kv_cache.bytes_per_state)
            self._kv_cache.write_state(slot.id, data)
