"""Block transfer: copies blocks and recurrent states, and moves them to and from the swap file, which is here, and
the prefix store."""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pellucid.backends.ops import BlockBytes, KVCache
from pellucid.execution.state_pieces import join_pieces, num_pieces, piece_hashes, split_state
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

if TYPE_CHECKING:  # few engines have one
    from pellucid.execution.prefix_store import PrefixStore

MOST_TOGETHER = 16  # blocks between the KV cache and the swap file

_Op = TypeVar("_Op")


class SwapFile:
    """Slots of one block each, in a temporary file without a name: the system deletes it when the process ends.

    Args:
        num_slots: at least 1.
        bytes_per_block: of all layers.

    Attributes:
        close: deletes the file; nothing else may be called after it.

    Raises:
        OSError: there is no room for all slots. All room is reserved at once, so that no write can fail later.
    """

    def __init__(self, num_slots: int, bytes_per_block: int) -> None:
        assert num_slots >= 1 and bytes_per_block >= 1
        self.num_slots = num_slots
        self.bytes_per_block = bytes_per_block
        with tempfile.TemporaryFile() as file:
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


@dataclass(eq=False)
class BlockTransfer:
    """Moves blocks and recurrent states within a KV cache, and between the cache, the swap file and the prefix store.

    Args:
        kv_cache: holds the blocks and the states.
        prefix_store: None if scheduling has none.
        swap_file: the slots of swapped blocks; None if scheduling has no swap slots.
    """

    _kv_cache: KVCache
    _prefix_store: "PrefixStore | None" = None
    _swap_file: SwapFile | None = None

    def run(self, ops: Sequence[BlockOp]) -> None:
        """Runs operations in order. Neighbours of one kind move their blocks together: a device is waited for once.

        Raises:
            OSError: the swap file cannot be read or written.
        """
        moves: dict[type[BlockOp], Callable[[Sequence[Any]], None]] = {
            Copy: self._copy,
            Save: self._save,
            Read: self._start_reading,
            Load: self._load,
            SwapOut: self._swap_out,
            SwapIn: self._swap_in,
        }
        for kind, neighbours in groupby(ops, type):
            moves[kind]([*neighbours])

    def _copy(self, copies: Sequence[Copy]) -> None:
        sources: dict[int, int] = {}  # of blocks that are copied together, by their targets
        for op in copies:
            source, target = op.source, op.target
            assert source.kind is target.kind
            if source.kind is SlotKind.STATES:
                self._kv_cache.copy_state(source.id, target.id)
                continue
            if sources.keys() & {source.id, target.id}:
                self._kv_cache.copy_blocks([*sources.values()], [*sources])
                sources.clear()
            sources[target.id] = source.id
        self._kv_cache.copy_blocks([*sources.values()], [*sources])

    def _save(self, saves: Sequence[Save]) -> None:
        """Saves slots in the prefix store, each if the store has room for all of its pieces."""
        assert self._prefix_store is not None
        wanted: list[tuple[Save, list[bytes]]] = []
        num_wanted, chosen = 0, set[bytes]()
        for op in saves:
            hashes = [op.block_hash]
            if op.slot.kind is SlotKind.STATES:
                cache = self._kv_cache
                count = num_pieces(cache.bytes_per_state, cache.bytes_per_block)
                hashes = piece_hashes(op.block_hash, count)
            if hashes[0] in chosen:
                continue
            if self._prefix_store.wants(hashes[0], len(hashes), num_wanted):
                wanted.append((op, hashes))
                num_wanted += len(hashes)
                chosen.add(hashes[0])
        contents = self._contents([op.slot for op, _ in wanted])
        for (op, hashes), pieces in zip(wanted, contents, strict=True):
            for piece_hash, piece in zip(hashes, pieces, strict=True):
                self._prefix_store.save(piece_hash, op.token_ids, piece)

    def _start_reading(self, reads: Sequence[Read]) -> None:
        assert self._prefix_store is not None
        for read in reads:
            self._prefix_store.start_reading(read)

    def _load(self, loads: Sequence[Load]) -> None:
        pieces: dict[Slot, Sequence[BlockBytes]] = {}
        for load in loads:
            assert isinstance(load.payload, np.ndarray | list)
            own = load.payload if isinstance(load.payload, list) else [load.payload]
            pieces[load.slot] = own
        self._fill(pieces)

    def _swap_out(self, swaps: Sequence[SwapOut]) -> None:
        assert self._swap_file is not None
        for some in _parts(swaps):
            contents = self._contents([each.slot for each in some])
            for each, pieces in zip(some, contents, strict=True):
                for swap_slot, piece in zip(each.swap_slots, pieces, strict=True):
                    self._swap_file.write(swap_slot, piece)

    def _swap_in(self, swaps: Sequence[SwapIn]) -> None:
        assert self._swap_file is not None
        for some in _parts(swaps):
            read = self._swap_file.read
            self._fill({each.slot: [read(own) for own in each.swap_slots] for each in some})

    def _contents(self, slots: Sequence[Slot]) -> list[list[BlockBytes]]:
        """What slots hold, in pieces of the size of a block."""
        cache = self._kv_cache
        blocks = iter(cache.read_blocks([each.id for each in slots if each.kind is SlotKind.BLOCK]))
        return [
            [next(blocks)]
            if slot.kind is SlotKind.BLOCK
            else split_state(cache.read_state(slot.id), cache.bytes_per_block)
            for slot in slots
        ]

    def _fill(self, pieces: Mapping[Slot, Sequence[BlockBytes]]) -> None:
        """Fills slots with pieces of the size of a block."""
        blocks: dict[int, BlockBytes] = {}
        for slot, own in pieces.items():
            if slot.kind is SlotKind.BLOCK:
                (blocks[slot.id],) = own
            else:
                data = join_pieces(own, self._kv_cache.bytes_per_state)
                self._kv_cache.write_state(slot.id, data)
        self._kv_cache.write_blocks([*blocks], [*blocks.values()])


def _parts(ops: Sequence[_Op]) -> Iterator[Sequence[_Op]]:
    """A few operations at a time: their blocks are in memory twice."""
    for start in range(0, len(ops), MOST_TOGETHER):
        yield ops[start : start + MOST_TOGETHER]
