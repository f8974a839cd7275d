"""Block transfer: copies blocks, and moves them to and from the swap file and the prefix store."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pellucid.backends.ops import BlockBytes, KVCache
from pellucid.execution.swap_file import SwapFile
from pellucid.scheduling.block import BlockKey
from pellucid.scheduling.scheduler_output import (
    BlockOp,
    CopyBlock,
    CopyState,
    LoadBlock,
    ReadBlocks,
    SaveBlock,
    SwapIn,
    SwapOut,
)


class PrefixStore(Protocol):
    """Where blocks are kept that are to outlive the pool. Its calls do not wait for a disk."""

    def wants(self, block_hash: bytes) -> bool:
        """Whether saving this block is of use: it is not there yet, and there is room to take it."""
        ...

    def save(self, block_hash: bytes, token_ids: tuple[int, ...], data: BlockBytes) -> None:
        """Takes a block."""
        ...

    def start_reading(self, read_id: int, keys: Sequence[BlockKey]) -> None:
        """Begins to read blocks, in order, up to the first that is not there or not sound."""
        ...


class BlockTransfer:
    """Moves blocks within a KV cache, and between it and what lies outside.

    Args:
        kv_cache: whose blocks are meant.
        prefix_store: None where scheduling has none.
        swap_file: the slots of swapped blocks; None where scheduling has no swap slots.
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
        """Does the work, in order.

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
                case ReadBlocks(read_id, keys):
                    assert self._prefix_store is not None
                    self._prefix_store.start_reading(read_id, keys)
                case LoadBlock(block_id, payload):
                    assert isinstance(payload, np.ndarray)
                    self._kv_cache.write_block(block_id, payload)
                case SwapOut(block_id, swap_slot):
                    assert self._swap_file is not None
                    self._swap_file.write(swap_slot, self._kv_cache.read_block(block_id))
                case SwapIn(swap_slot, block_id):
                    assert self._swap_file is not None
                    self._kv_cache.write_block(block_id, self._swap_file.read(swap_slot))
