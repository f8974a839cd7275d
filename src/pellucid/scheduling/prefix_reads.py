"""Blocks of the prefix store: which of them are being read, or wait in memory for their request."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from pellucid.scheduling.block import BlockKey
from pellucid.scheduling.block_ops import (
    KeyToRead,
    LoadBlock,
    LoadState,
    PrefixToRead,
    ReadBlocks,
    ReadSnapshot,
    SaveBlock,
    SaveState,
)
from pellucid.scheduling.block_table import Place


@dataclass(slots=True)
class _Read:
    """Blocks that the prefix store reads for a waiting request.

    Attributes:
        request_id: None: the request no longer needs them.
        keys: by place.
        num_reserved: most blocks of memory that the results can take.
        payloads: the contents that were read, by place; None: the store is still reading.
        snapshot: the snapshot that was read; None: there was none.
    """

    request_id: str | None
    keys: dict[Place, BlockKey]
    num_reserved: int
    payloads: dict[Place, object] | None = None
    snapshot: ReadSnapshot | None = None


class PrefixReads:
    """Owns the blocks that the prefix store reads for waiting requests; offers new blocks to the prefix store.

    The prefix store holds blocks for all requests. A waiting request asks for blocks once, and takes those that
    were read when it is admitted. Blocks that are being read or wait for their request are in memory; their
    number is bounded. Recurrent states count as the number of blocks that their bytes fill.

    Args:
        max_read_blocks: most blocks that are being read or wait for their request; 0: there is no prefix store.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a request, rounded up.
    """

    def __init__(self, max_read_blocks: int, blocks_per_state: int) -> None:
        self._max_read_blocks = max_read_blocks
        self._blocks_per_state = blocks_per_state
        self._reads: dict[int, _Read] = {}  # by read_id
        self._read_of: dict[str, int] = {}  # read_id by request id
        self._read_ids = count()
        self._num_read_blocks = 0  # asked for, and not taken or dropped yet

    @property
    def has_prefix_store(self) -> bool:
        """Whether there is a prefix store."""
        return self._max_read_blocks > 0

    def save(self, block_id: int, key: BlockKey) -> SaveBlock | None:
        """Offers a block that has just become full to the prefix store."""
        return SaveBlock(block_id, key.block_hash, key.token_ids) if self.has_prefix_store else None

    def save_states(
        self, state_slot: int, block_hash: bytes, token_ids: tuple[int, ...]
    ) -> SaveState | None:
        """Offers a snapshot that has just been taken to the prefix store."""
        return SaveState(state_slot, block_hash, token_ids) if self.has_prefix_store else None

    def has_asked(self, request_id: str) -> bool:
        """Whether a request has asked the prefix store since it was last admitted."""
        return request_id in self._read_of

    @property
    def num_readable_blocks(self) -> int:
        """Blocks that may be asked for now."""
        return self._max_read_blocks - self._num_read_blocks

    @property
    def is_reading(self) -> bool:
        return any(read.payloads is None for read in self._reads.values())

    def start_reading(
        self,
        request_id: str,
        keys: Mapping[Place, KeyToRead],
        prefixes: Sequence[PrefixToRead],
        num_blocks: int,
    ) -> ReadBlocks:
        """Asks the prefix store for what one of some prefixes needs.

        Args:
            keys: of the blocks, by place.
            prefixes: at least one, the shortest first.
            num_blocks: the most blocks that one of them needs.
        """
        num_blocks += 0 if prefixes[0].snapshot is None else self._blocks_per_state
        assert num_blocks <= self.num_readable_blocks and not self.has_asked(request_id)
        read_id = next(self._read_ids)
        self._num_read_blocks += num_blocks
        own_keys = {place: each.key for place, each in keys.items()}
        self._reads[read_id] = _Read(request_id, own_keys, num_blocks)
        self._read_of[request_id] = read_id
        return ReadBlocks(read_id, tuple(keys.values()), tuple(prefixes))

    def finish_reading(self, read_id: int, payloads: Sequence[object]) -> str | None:
        """Takes what was read.

        Args:
            payloads: of the first keys, as `ReadBlocks` says.

        Returns:
            The id of the request that waits for it; None if it does not any more.
        """
        read = self._reads.get(read_id)
        if read is None or read.payloads is not None:  # it was cancelled
            return None
        if payloads and isinstance(payloads[-1], ReadSnapshot):
            read.snapshot, payloads = payloads[-1], payloads[:-1]
        found = zip(read.keys, payloads, strict=False)
        read.payloads = {place: payload for place, payload in found if payload is not None}
        self._num_read_blocks -= read.num_reserved - self._num_kept_blocks(read)
        if read.request_id is None:
            self._forget_read(read_id)
        return read.request_id

    def reading_ids(self) -> list[int]:
        """The reads whose blocks are not there yet."""
        return [read_id for read_id, read in self._reads.items() if read.payloads is None]

    def is_loaded(self, request_id: str, place: Place, key: BlockKey) -> bool:
        """Whether a block was read for a request."""
        if (read_id := self._read_of.get(request_id)) is None:
            return False
        read = self._reads[read_id]
        return read.payloads is not None and place in read.payloads and read.keys[place] == key

    def load(self, request_id: str, place: Place, block_id: int, key: BlockKey) -> LoadBlock | None:
        """Fills a block with what was read for a request's block at `place`, if it was."""
        if not self.is_loaded(request_id, place, key):
            return None
        payloads = self._reads[self._read_of[request_id]].payloads
        assert payloads is not None
        return LoadBlock(block_id, payloads[place])

    def loaded_snapshot(self, request_id: str) -> bytes | None:
        """The block hash of the snapshot that was read for a request; None: none was."""
        if (read_id := self._read_of.get(request_id)) is None:
            return None
        snapshot = self._reads[read_id].snapshot
        return None if snapshot is None else snapshot.block_hash

    def load_states(self, request_id: str, state_slot: int) -> LoadState:
        """Fills a slot with the snapshot that was read for a request."""
        snapshot = self._reads[self._read_of[request_id]].snapshot
        assert snapshot is not None
        return LoadState(state_slot, snapshot.payload)

    def drop_reads_that_wait(self) -> None:
        """Drops blocks that were read for requests which are not admitted yet: these ask again."""
        for read_id, read in list(self._reads.items()):
            if read.payloads is not None:
                self._forget_read(read_id)

    def drop(self, request_id: str) -> None:
        """Drops what was read for a request, or will be."""
        if (read_id := self._read_of.pop(request_id, None)) is not None:
            self._reads[read_id].request_id = None
            if self._reads[read_id].payloads is not None:
                self._forget_read(read_id)

    def _forget_read(self, read_id: int) -> None:
        read = self._reads.pop(read_id)
        assert read.payloads is not None
        self._num_read_blocks -= self._num_kept_blocks(read)
        if read.request_id is not None:
            del self._read_of[read.request_id]

    def _num_kept_blocks(self, read: _Read) -> int:
        """Blocks that what was read takes."""
        num_blocks = 0 if read.payloads is None else len(read.payloads)
        return num_blocks + (0 if read.snapshot is None else self._blocks_per_state)

    def check_integrity(self, request_ids: Collection[str]) -> None:
        """`request_ids`: of all unfinished requests with a block table."""
        assert self._read_of.keys() <= set(request_ids)
        kept = (
            r.num_reserved if r.payloads is None else self._num_kept_blocks(r)
            for r in self._reads.values()
        )
        assert sum(kept) == self._num_read_blocks <= self._max_read_blocks
        waiting = {r.request_id: i for i, r in self._reads.items() if r.request_id is not None}
        assert waiting == self._read_of
