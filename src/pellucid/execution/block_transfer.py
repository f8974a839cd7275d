"""Block transfer: copies blocks and recurrent states, and moves them to and from the swap file and the
prefix store."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pellucid.backends.ops import BlockBytes, KVCache
from pellucid.execution.state_pieces import join_pieces, num_pieces, piece_hashes, split_state
from pellucid.execution.swap_file import SwapFile
from pellucid.scheduling.block_ops import (
    BlockOp,
    CopyBlock,
    CopyState,
    LoadBlock,
    LoadState,
    ReadBlocks,
    SaveBlock,
    SaveState,
    SwapIn,
    SwapInState,
    SwapOut,
    SwapOutState,
)


class PrefixStore(Protocol):
    """Stores blocks beyond their lives in the pool. Its calls do not wait for a disk."""

    def wants(self, block_hash: bytes, num_blocks: int = 1) -> bool:
        """Whether this block should be saved: it is not in the queue yet, and the queue has room for it.

        Args:
            num_blocks: blocks that the queue must have room for; for a snapshot, the number of its pieces, of
                which this is the first.
        """
        ...

    def save(self, block_hash: bytes, token_ids: tuple[int, ...], data: BlockBytes) -> None:
        """Queues a block to be saved."""
        ...

    def start_reading(self, read: ReadBlocks) -> None:
        """Begins to read blocks, and a snapshot, as `ReadBlocks` says."""
        ...


class BlockTransfer:
    """Moves blocks within a KV cache, and between the cache, the swap file and the prefix store.

    Args:
        kv_cache: holds the blocks.
        prefix_store: None if scheduling has none.
        swap_file: the slots of swapped blocks; None if scheduling has no swap slots.
    """

    def __init__(
        self,
        kv_cache: KVCache,
        prefix_store: PrefixStore | None = None,
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
                case CopyBlock(source_id, target_id):
                    self._kv_cache.copy_block(source_id, target_id)
                case CopyState(source_slot, target_slot):
                    self._kv_cache.copy_state(source_slot, target_slot)
                case SaveBlock(block_id, block_hash, token_ids):
                    assert self._prefix_store is not None
                    if self._prefix_store.wants(block_hash):
                        data = self._kv_cache.read_block(block_id)
                        self._prefix_store.save(block_hash, token_ids, data)
                case SaveState(state_slot, block_hash, token_ids):
                    self._save_state(state_slot, block_hash, token_ids)
                case ReadBlocks():
                    assert self._prefix_store is not None
                    self._prefix_store.start_reading(op)
                case LoadState(state_slot, payload):
                    assert isinstance(payload, list)
                    self._write_state(state_slot, payload)
                case LoadBlock(block_id, payload):
                    assert isinstance(payload, np.ndarray)
                    self._kv_cache.write_block(block_id, payload)
                case SwapOut(block_id, swap_slot):
                    assert self._swap_file is not None
                    self._swap_file.write(swap_slot, self._kv_cache.read_block(block_id))
                case SwapIn(swap_slot, block_id):
                    assert self._swap_file is not None
                    self._kv_cache.write_block(block_id, self._swap_file.read(swap_slot))
                case SwapOutState(state_slot, swap_slots):
                    assert self._swap_file is not None
                    pieces = self._state_pieces(state_slot)
                    for swap_slot, piece in zip(swap_slots, pieces, strict=True):
                        self._swap_file.write(swap_slot, piece)
                case SwapInState(swap_slots, state_slot):
                    assert self._swap_file is not None
                    pieces = [self._swap_file.read(swap_slot) for swap_slot in swap_slots]
                    self._write_state(state_slot, pieces)

    def _save_state(self, slot: int, block_hash: bytes, token_ids: tuple[int, ...]) -> None:
        """Saves a snapshot in the prefix store, if the store has room for all pieces."""
        assert self._prefix_store is not None
        cache = self._kv_cache
        hashes = piece_hashes(block_hash, num_pieces(cache.bytes_per_state, cache.bytes_per_block))
        if self._prefix_store.wants(hashes[0], len(hashes)):
            for piece_hash, piece in zip(hashes, self._state_pieces(slot), strict=True):
                self._prefix_store.save(piece_hash, token_ids, piece)

    def _state_pieces(self, slot: int) -> list[BlockBytes]:
        return split_state(self._kv_cache.read_state(slot), self._kv_cache.bytes_per_block)

    def _write_state(self, slot: int, pieces: Sequence[BlockBytes]) -> None:
        self._kv_cache.write_state(slot, join_pieces(pieces, self._kv_cache.bytes_per_state))
