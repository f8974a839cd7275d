"""The state pool: which slots of recurrent states are free, and which hold snapshots of prefixes."""

from collections import OrderedDict

from pellucid.observing.events import StateOpRow
from pellucid.scheduling.op_log import OpLog

# Snapshots of unfinished outputs take at most 1 / OUTPUT_SHARE of the slots for snapshots: each decoding request
# takes one after another, and together they would evict the snapshots of all prompts.
OUTPUT_SHARE = 2


class StatePool:
    """Owns the slots. A slot holds the recurrent states of all layers: the current states of a request, a copy of
    them from before a step with drafts, or a snapshot: the states at the end of a full block of some text.

    Args:
        num_slots: requests that can have states at a time; at least 1.
        num_snapshots: slots for snapshots, the last ones.
        num_spares: spare slots, for copies from before steps with drafts. After a wrong draft, a spare slot and
            the slot of a request are exchanged.

    Attributes:
        log: records what happens to snapshots.
        version: another object whenever a snapshot has come or gone.
    """

    def __init__(self, num_slots: int, num_snapshots: int = 0, num_spares: int = 0) -> None:
        self.num_slots = num_slots
        self.num_snapshots = num_snapshots
        self.num_spares = num_spares
        self.log = OpLog[StateOpRow]()
        self.version = object()
        self._first_snapshot = num_slots + num_spares
        self._free = list(range(self._first_snapshot))[::-1]
        self._num_taken_spares = 0
        last = self._first_snapshot + num_snapshots
        self._free_snapshots = list(range(self._first_snapshot, last))[::-1]
        self._snapshots: OrderedDict[bytes, int] = OrderedDict()  # by block hash, LRU
        self._of_outputs: set[bytes] = set()  # the snapshots of unfinished outputs
        self._max_of_outputs = num_snapshots // OUTPUT_SHARE

    @property
    def num_free_slots(self) -> int:
        """Slots that requests can still have."""
        return len(self._free) - self.num_free_spares

    @property
    def num_free_spares(self) -> int:
        return self.num_spares - self._num_taken_spares

    def allocate(self) -> int:
        """A free slot; there must be one. Its contents are undefined: a forward starts a text with zeros."""
        assert self.num_free_slots > 0
        return self._free.pop()

    def release(self, slot: int) -> None:
        assert 0 <= slot < self._first_snapshot and slot not in self._free
        self._free.append(slot)

    def allocate_spare(self) -> int:
        """A spare slot; there must be a free one."""
        assert self.num_free_spares > 0
        self._num_taken_spares += 1
        return self._free.pop()

    def release_spare(self, slot: int) -> None:
        self._num_taken_spares -= 1
        self.release(slot)

    # ---- snapshots

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether there is a snapshot of the states at the end of the block with this hash."""
        return block_hash in self._snapshots

    def find(self, block_hash: bytes) -> int | None:
        """The slot of a snapshot; None: there is none."""
        return self._snapshots.get(block_hash)

    @property
    def num_used_snapshots(self) -> int:
        return len(self._snapshots)

    def use(self, block_hash: bytes, request_id: str, num_tokens: int) -> int:
        """The slot of an existing snapshot, for a request that continues from it.

        Args:
            num_tokens: tokens up to the end of the block.
        """
        self._snapshots.move_to_end(block_hash)
        slot = self._snapshots[block_hash]
        if self.log.active:
            self.log.add(("U", slot, request_id, num_tokens))
        return slot

    def add_snapshot(
        self, block_hash: bytes, request_id: str, num_tokens: int, of_output: bool = False
    ) -> int | None:
        """A slot for a new snapshot of a request's states after `num_tokens`. Evicts the least recently used
        snapshot if no slot is free, and the least recently used one of an output if these have their share.

        Args:
            of_output: the output is not finished: a later snapshot will replace this one.

        Returns:
            None: this snapshot exists already, or there is no slot for it.
        """
        if block_hash in self._snapshots:
            self._snapshots.move_to_end(block_hash)
            if not of_output:
                self.make_lasting(block_hash)
            return None
        if of_output and len(self._of_outputs) == self._max_of_outputs:
            if not self._of_outputs:
                return None
            self.drop(next(each for each in self._snapshots if each in self._of_outputs))
        elif not self._free_snapshots:
            self.drop(next(iter(self._snapshots)))
        if of_output:
            self._of_outputs.add(block_hash)
        self.version = object()
        slot = self._snapshots[block_hash] = self._free_snapshots.pop()
        if self.log.active:
            self.log.add(("T", slot, request_id, num_tokens))
        return slot

    def make_lasting(self, block_hash: bytes) -> None:
        """An output is finished, or a prompt contains its text so far: its snapshot counts as a prompt's."""
        self._of_outputs.discard(block_hash)

    def drop_of_output(self, block_hash: bytes) -> None:
        """Forgets the snapshot of an output that a later one replaces, unless it is lasting."""
        if block_hash in self._of_outputs:
            self.drop(block_hash)

    def drop(self, block_hash: bytes) -> None:
        """Forgets a snapshot, if it is still there."""
        self._of_outputs.discard(block_hash)
        if (slot := self._snapshots.pop(block_hash, None)) is not None:
            self.version = object()
            self._free_snapshots.append(slot)
            if self.log.active:
                self.log.add(("E", slot, None, None))

    def drop_snapshots(self) -> None:
        """Forgets all snapshots, because their contents are undefined."""
        for block_hash in list(self._snapshots):
            self.drop(block_hash)

    def check_integrity(self) -> None:
        slots = [*self._free_snapshots, *self._snapshots.values()]
        last = self._first_snapshot + self.num_snapshots
        assert sorted(slots) == list(range(self._first_snapshot, last))
        assert self._of_outputs <= self._snapshots.keys()
        assert len(self._of_outputs) <= self._max_of_outputs
        assert 0 <= self._num_taken_spares <= self.num_spares
