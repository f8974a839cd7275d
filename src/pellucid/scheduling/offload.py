"""Offload: what is outside of the pools, in the swap file or read from the prefix store: blocks and recurrent states.

Both places have room for blocks. Recurrent states count as the number of blocks that their bytes fill.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from pellucid.scheduling.block_ops import (
    KeyToRead,
    Load,
    PrefixToRead,
    Read,
    ReadSnapshot,
    Slot,
    SlotKind,
    SwapIn,
    SwapOut,
)
from pellucid.scheduling.block_tables import Place

# What a slot held: its kind, and the hash of a block. Of states: the block at whose end they are.
Contents: TypeAlias = tuple[SlotKind, bytes]


class BrokenPlanError(Exception):
    """An admission cannot be carried out as planned: what it counted on is gone. Its request has to end."""


class SwapSlots:
    """Owns the slots of the swap file. A preempted request finds there the blocks and the states that it lost.

    Args:
        num_slots: blocks that the swap file holds; 0: there is no swap file.
        blocks_per_state: slots that the recurrent states of a request take.
    """

    def __init__(self, num_slots: int, blocks_per_state: int) -> None:
        self._num_slots = num_slots
        self._blocks_per_state = blocks_per_state
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._blocks: dict[str, dict[Place, int]] = {}  # by request id and place
        # By request id: computed tokens when the states were swapped out, and their slots.
        self._states: dict[str, tuple[int, tuple[int, ...]]] = {}

    def has(self, request_id: str) -> bool:
        """Whether anything of a request is in the swap file."""
        return request_id in self._blocks or request_id in self._states

    def num_blocks(self, request_id: str) -> int:
        """Blocks of a request in the swap file."""
        return len(self._blocks.get(request_id, ()))

    def has_block(self, request_id: str, place: Place) -> bool:
        return place in self._blocks.get(request_id, ())

    def num_state_tokens(self, request_id: str) -> int | None:
        """The computed tokens after which a request's states were swapped out; None: they are not there."""
        return self._states.get(request_id, (None,))[0]

    def swap_out(self, request_id: str, place: Place, block_id: int) -> SwapOut | None:
        """Swaps out a request's block at `place`, if a slot is free."""
        if not self._free_slots:
            return None
        slot = self._free_slots.pop()
        self._blocks.setdefault(request_id, {})[place] = slot
        return SwapOut(Slot(SlotKind.BLOCK, block_id), (slot,))

    def swap_out_states(self, request_id: str, num_tokens: int, number: int) -> SwapOut | None:
        """Swaps out a request's states after `num_tokens`, if slots are free for them and for a block.

        Args:
            number: of the slot that holds the states.
        """
        assert request_id not in self._states
        if len(self._free_slots) <= self._blocks_per_state:
            return None
        slots = tuple([self._free_slots.pop() for _ in range(self._blocks_per_state)])
        self._states[request_id] = num_tokens, slots
        return SwapOut(Slot(SlotKind.STATES, number), slots)

    def swap_in(self, request_id: str, place: Place, block_id: int) -> SwapIn:
        """Swaps a request's block at `place` into another block.

        Raises:
            BrokenPlanError: the swap file does not have it.
        """
        if (slot := self._blocks.get(request_id, {}).pop(place, None)) is None:
            raise BrokenPlanError("a block of the request has left the swap file")
        self._free_slots.append(slot)
        return SwapIn((slot,), Slot(SlotKind.BLOCK, block_id))

    def swap_in_states(self, request_id: str, number: int) -> SwapIn:
        """Swaps a request's states in. Their slots are free after `drop`."""
        return SwapIn(self._states[request_id][1], Slot(SlotKind.STATES, number))

    def drop(self, request_id: str) -> None:
        """Frees the slots of a request."""
        self._free_slots += self._blocks.pop(request_id, {}).values()
        self._free_slots += self._states.pop(request_id, (0, ()))[1]

    def check_integrity(self, request_ids: Collection[str]) -> None:
        """`request_ids`: of all unfinished requests with a block table."""
        taken = [slot for slots in self._blocks.values() for slot in slots.values()]
        taken += [slot for _, slots in self._states.values() for slot in slots]
        assert sorted([*self._free_slots, *taken]) == list(range(self._num_slots))
        assert self._blocks.keys() | self._states.keys() <= set(request_ids)


@dataclass(slots=True)
class _PendingRead:
    """What the prefix store reads for a waiting request.

    Attributes:
        request_id: None: the request no longer needs it.
        keys: of the blocks, as asked for.
        num_reserved: most blocks of memory that the results can take.
        payloads: what was read; None: the store is still reading.
    """

    request_id: str | None
    keys: Sequence[KeyToRead]
    num_reserved: int
    payloads: dict[Contents, object] | None = None


class PrefixReads:
    """Owns what the prefix store reads for waiting requests.

    The prefix store holds blocks for all requests. A waiting request asks for blocks once, and takes those that
    were read when it is admitted. Blocks that are being read or wait for their request are in memory; their
    number is bounded.

    Args:
        max_read_blocks: most blocks that are being read or wait for their request; 0: there is no prefix store.
        blocks_per_state: blocks that recurrent states count as.
    """

    def __init__(self, max_read_blocks: int, blocks_per_state: int) -> None:
        self._max_read_blocks = max_read_blocks
        self._num_blocks_of = {SlotKind.BLOCK: 1, SlotKind.STATES: blocks_per_state}
        self._reads: dict[int, _PendingRead] = {}  # by read_id
        self._read_of: dict[str, int] = {}  # read_id by request id
        self._read_ids = count()
        self._num_read_blocks = 0  # asked for, and not taken or dropped yet

    @property
    def has_prefix_store(self) -> bool:
        return self._max_read_blocks > 0

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
        keys: Sequence[KeyToRead],
        prefixes: Sequence[PrefixToRead],
        num_blocks: int,
    ) -> Read:
        """Asks the prefix store for what one of some prefixes needs.

        Args:
            keys: of the blocks.
            prefixes: at least one, the shortest first.
            num_blocks: the most blocks that one of them needs.
        """
        if prefixes[0].snapshot is not None:
            num_blocks += self._num_blocks_of[SlotKind.STATES]
        assert num_blocks <= self.num_readable_blocks and not self.has_asked(request_id)
        read_id = next(self._read_ids)
        self._num_read_blocks += num_blocks
        self._reads[read_id] = _PendingRead(request_id, keys, num_blocks)
        self._read_of[request_id] = read_id
        return Read(read_id, tuple(keys), tuple(prefixes))

    def finish_reading(self, read_id: int, payloads: Sequence[object]) -> str | None:
        """Takes what was read.

        Args:
            payloads: of the first keys, as `Read` says.

        Returns:
            The id of the request that waits for it; None if it does not any more.
        """
        read = self._reads.get(read_id)
        if read is None or read.payloads is not None:  # it was cancelled
            return None
        read.payloads = {}
        if payloads and isinstance(snapshot := payloads[-1], ReadSnapshot):
            read.payloads[SlotKind.STATES, snapshot.block_hash] = snapshot.payload
            payloads = payloads[:-1]
        for each, payload in zip(read.keys, payloads, strict=False):
            if payload is not None:
                read.payloads[SlotKind.BLOCK, each.key.block_hash] = payload
        self._num_read_blocks -= read.num_reserved - self._num_held(read)
        if read.request_id is None:
            self._forget(read_id)
        return read.request_id

    def reading_ids(self) -> list[int]:
        """The reads whose blocks are not there yet."""
        return [read_id for read_id, read in self._reads.items() if read.payloads is None]

    def has(self, request_id: str) -> bool:
        """Whether anything was read for a request."""
        return bool(self._payloads_of(request_id))

    def has_loaded(self, request_id: str, kind: SlotKind, block_hash: bytes) -> bool:
        """Whether a block, or the states at its end, were read for a request."""
        return (kind, block_hash) in self._payloads_of(request_id)

    def load(self, request_id: str, slot: Slot, block_hash: bytes) -> Load:
        """Fills a slot with what was read for a request.

        Raises:
            BrokenPlanError: it was not read, or dropped.
        """
        payloads = self._payloads_of(request_id)
        if (slot.kind, block_hash) not in payloads:
            raise BrokenPlanError("what was read for the request has been dropped")
        return Load(slot, payloads[slot.kind, block_hash])

    def drop_reads_that_wait(self) -> None:
        """Drops what was read for requests which are not admitted yet: these ask again."""
        for read_id, read in list(self._reads.items()):
            if read.payloads is not None:
                self._forget(read_id)

    def drop(self, request_id: str) -> None:
        """Drops what was read for a request, or will be."""
        if (read_id := self._read_of.pop(request_id, None)) is not None:
            self._reads[read_id].request_id = None
            if self._reads[read_id].payloads is not None:
                self._forget(read_id)

    def _payloads_of(self, request_id: str) -> Mapping[Contents, object]:
        read_id = self._read_of.get(request_id)
        return {} if read_id is None else self._reads[read_id].payloads or {}

    def _forget(self, read_id: int) -> None:
        read = self._reads.pop(read_id)
        self._num_read_blocks -= self._num_held(read)
        if read.request_id is not None:
            del self._read_of[read.request_id]

    def _num_held(self, read: _PendingRead) -> int:
        """Blocks of memory that a read takes."""
        if read.payloads is None:
            return read.num_reserved
        return sum(self._num_blocks_of[kind] for kind, _ in read.payloads)

    def check_integrity(self, request_ids: Collection[str]) -> None:
        """`request_ids`: of all unfinished requests with a block table."""
        assert self._read_of.keys() <= set(request_ids)
        num_held = sum(map(self._num_held, self._reads.values()))
        assert num_held == self._num_read_blocks <= self._max_read_blocks
        waiting = {r.request_id: i for i, r in self._reads.items() if r.request_id is not None}
        assert waiting == self._read_of


class Offload:
    """The two places outside of the pools in which a waiting request may find its blocks and its states.

    Args:
        num_swap_slots: blocks that the swap file holds; 0: there is no swap file.
        max_read_blocks: most blocks of the prefix store that are being read or wait for their request; 0: there is
            no prefix store.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a request, rounded up.

    Attributes:
        swapped: what is in the swap file, each for its own request.
        reads: what the prefix store reads, which has blocks for all requests.
    """

    def __init__(
        self, num_swap_slots: int = 0, max_read_blocks: int = 0, blocks_per_state: int = 0
    ) -> None:
        self.blocks_per_state = blocks_per_state
        self.swapped = SwapSlots(num_swap_slots, blocks_per_state)
        self.reads = PrefixReads(max_read_blocks, blocks_per_state)

    def has(self, request_id: str) -> bool:
        """Whether anything of a request is here."""
        return self.swapped.has(request_id) or self.reads.has(request_id)

    def drop(self, request_id: str) -> None:
        """Forgets what is kept of a request."""
        self.swapped.drop(request_id)
        self.reads.drop(request_id)

    def check_integrity(self, request_ids: Collection[str]) -> None:
        """`request_ids`: of all unfinished requests with a block table."""
        self.swapped.check_integrity(request_ids)
        self.reads.check_integrity(request_ids)
