"""A fake data plane for the scheduler's tests: block contents without a model.

A slot holds a digest of all tokens up to its position and of the salt. A share that is computed checks
that every position before it holds what it has to: a wrong slot, a block shared, copied, given away or
filled too early or too late does not go unnoticed.
"""

from collections.abc import Sequence

from pellucid.facts.formulas import first_seen
from pellucid.scheduling.block import BlockKey
from pellucid.scheduling.block_ops import (
    BlockOp,
    CopyBlock,
    CopyState,
    LoadBlock,
    LoadState,
    ReadBlocks,
    ReadSnapshot,
    SaveBlock,
    SaveState,
    SwapIn,
    SwapInState,
    SwapOut,
    SwapOutState,
)
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest

Slots = dict[int, int]  # offset -> digest


class FakeStore:
    """A prefix store that keeps everything."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, tuple[int, ...]], Slots] = {}
        self.states: dict[tuple[bytes, tuple[int, ...]], int] = {}

    def read(self, op: ReadBlocks) -> list[object]:
        """What the longest prefix needs of which everything is there."""
        for prefix in reversed(op.prefixes):
            needed = op.needed(prefix)
            found = [
                self._block(op.keys[i].key) if i in needed else None for i in range(prefix.num_keys)
            ]
            if any(found[i] is None for i in needed):
                continue
            if prefix.snapshot is None:
                return found
            if (states := self.states.get(prefix.snapshot)) is not None:
                return [*found, ReadSnapshot(prefix.snapshot.block_hash, states)]
        return []

    def _block(self, key: BlockKey) -> Slots | None:
        return self.blocks.get((key.block_hash, key.token_ids))


class FakeBlocks:
    """Args: windows: of each group of layers; has_states: whether there are recurrent states."""

    def __init__(
        self,
        block_size: int,
        store: FakeStore | None = None,
        windows: Sequence[int | None] = (None,),
        has_states: bool = False,
    ) -> None:
        self.has_states = has_states
        self.block_size = block_size
        self.windows = windows
        self.states: dict[int, int] = {}  # by slot, as a digest of the tokens so far
        self.store = store
        self.blocks: dict[int, Slots] = {}
        self.swapped: dict[int, Slots | int] = {}  # by slot: of a block, or states
        self.ops: list[BlockOp] = []  # all that were ever run
        self.reads: list[ReadBlocks] = []  # those that were not answered yet

    def run(self, ops: Sequence[BlockOp]) -> None:
        self.ops += ops
        for op in ops:
            match op:
                case CopyBlock(source_id, target_id):
                    self.blocks[target_id] = dict(self.blocks[source_id])
                case SaveBlock(block_id, block_hash, token_ids):
                    assert len(self.blocks[block_id]) == self.block_size
                    self.store.blocks[block_hash, token_ids] = dict(self.blocks[block_id])
                case ReadBlocks():
                    self.reads.append(op)
                case LoadBlock(block_id, payload):
                    self.blocks[block_id] = dict(payload)
                case SwapOut(block_id, swap_slot):
                    self.swapped[swap_slot] = dict(self.blocks[block_id])
                case SwapIn(swap_slot, block_id):
                    self.blocks[block_id] = dict(self.swapped[swap_slot])
                case CopyState(source_slot, target_slot):
                    self.states[target_slot] = self.states[source_slot]
                case SaveState(state_slot, block_hash, token_ids):
                    self.store.states[block_hash, token_ids] = self.states[state_slot]
                case LoadState(state_slot, payload):
                    self.states[state_slot] = payload
                case SwapOutState(state_slot, swap_slots):
                    self.swapped.update(dict.fromkeys(swap_slots, self.states[state_slot]))
                case SwapInState(swap_slots, state_slot):
                    (self.states[state_slot],) = {self.swapped[slot] for slot in swap_slots}

    def compute(self, share: ScheduledRequest) -> None:
        request = share.request
        digests = _digests(request, share.end)
        for table, window in zip(share.block_tables, self.windows, strict=True):
            for position in range(first_seen(share.start, window), share.start):
                assert self._read(table, position) == digests[position], (
                    f"{request.request_id} at {position}"
                )
            for position in range(share.start, share.end):
                block_id = table[position // self.block_size]
                assert block_id >= 0
                block = self.blocks.setdefault(block_id, {})
                block[position % self.block_size] = digests[position]

        if self.has_states:
            assert not share.start or self.states[share.state_slot] == digests[share.start - 1], (
                f"{request.request_id}: states at {share.start}"
            )
            self.states[share.state_slot] = digests[share.end - 1]

    def _read(self, block_ids: Sequence[int], position: int) -> int | None:
        slots = self.blocks.get(block_ids[position // self.block_size], {})
        return slots.get(position % self.block_size)


def _digests(request: Request, end: int) -> list[int]:
    digest, digests = len(request.cache_salt), []
    for token_id in request.token_ids(0, end):
        digest = hash((digest, token_id))
        digests.append(digest)
    return digests
