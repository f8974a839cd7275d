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
    Copy,
    Load,
    Read,
    ReadSnapshot,
    Save,
    Slot,
    SlotKind,
    SwapIn,
    SwapOut,
)
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import BlockIds, ScheduledRequest

Slots = dict[int, int]  # offset -> digest


class FakeStore:
    """A prefix store that keeps everything."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, tuple[int, ...]], Slots] = {}
        self.states: dict[tuple[bytes, tuple[int, ...]], int] = {}

    def read(self, op: Read) -> list[object]:
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
        self.reads: list[Read] = []  # those that were not answered yet

    def run(self, ops: Sequence[BlockOp]) -> None:
        self.ops += ops
        for op in ops:
            match op:
                case Copy(source, target):
                    assert source.kind is target.kind
                    self._write(target, self._contents(source))
                case Save(slot, block_hash, token_ids):
                    contents = self._contents(slot)
                    assert isinstance(contents, int) or len(contents) == self.block_size
                    of_kind = self.store.blocks if _is_block(slot) else self.store.states
                    of_kind[block_hash, token_ids] = contents
                case Read():
                    self.reads.append(op)
                case Load(slot, payload):
                    self._write(slot, payload)
                case SwapOut(slot, swap_slots):
                    self.swapped.update(dict.fromkeys(swap_slots, self._contents(slot)))
                case SwapIn(swap_slots, slot):
                    first, *rest = [self.swapped[each] for each in swap_slots]
                    assert all(each == first for each in rest)
                    self._write(slot, first)

    def _contents(self, slot: Slot) -> Slots | int:
        return dict(self.blocks[slot.id]) if _is_block(slot) else self.states[slot.id]

    def _write(self, slot: Slot, contents: Slots | int) -> None:
        if _is_block(slot):
            self.blocks[slot.id] = dict(contents)
        else:
            assert isinstance(contents, int)
            self.states[slot.id] = contents

    def compute(self, request: Request, share: ScheduledRequest, tables: BlockIds) -> None:
        digests = _digests(request, share.end)
        for table, window in zip(tables, self.windows, strict=True):
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


def _is_block(slot: Slot) -> bool:
    return slot.kind is SlotKind.BLOCK


def recorded(op: BlockOp) -> tuple[str, str]:
    """The name of an operation, and the operation itself, as recorded courses spell them."""
    slot = op.target if isinstance(op, Copy) else None if isinstance(op, Read) else op.slot
    if slot is None:
        return "ReadBlocks", f"ReadBlocks{str(op).removeprefix('Read')}"
    noun, place = ("Block", "block_id") if _is_block(slot) else ("State", "state_slot")
    is_swapped_block = _is_block(slot) and isinstance(op, SwapIn | SwapOut)
    name = type(op).__name__ + ("" if is_swapped_block else noun)
    match op:
        case Copy(source, target):
            suffix = "id" if _is_block(slot) else "slot"
            fields = f"source_{suffix}={source.id}, target_{suffix}={target.id}"
        case Save():
            fields = f"{place}={slot.id}, block_hash={op.block_hash!r}, token_ids={op.token_ids}"
        case Load():
            fields = f"{place}={slot.id}, payload={op.payload}"
        case SwapIn() | SwapOut():
            slots = op.swap_slots[0] if is_swapped_block else op.swap_slots
            named = f"swap_slot{'' if is_swapped_block else 's'}={slots}", f"{place}={slot.id}"
            fields = ", ".join(named if isinstance(op, SwapIn) else reversed(named))
    return name, f"{name}({fields})"
