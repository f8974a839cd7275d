"""Which request has which slot of the KV cache; copies between slots are block operations."""

from collections.abc import Sequence

from pellucid.scheduling.block_ops import BlockOp, Copy, Slot, SlotKind
from pellucid.scheduling.request import Request
from pellucid.scheduling.state_pool import StatePool


class RequestSlots:
    """Gives requests a slot each, of recurrent states or of open keys.

    Args:
        pool: owns the slots.
        block_ops: gets the copies.
    """

    def __init__(self, pool: StatePool, block_ops: list[BlockOp]) -> None:
        self.pool = pool
        self._block_ops = block_ops
        self._slots: dict[str, int] = {}  # by request_id

    def find(self, request: Request) -> int | None:
        """The slot of a request; None: it has none."""
        return self._slots.get(request.request_id)

    def of(self, request: Request) -> int:
        """The slot of a request that has one."""
        return self._slots[request.request_id]

    def lacks(self, request: Request) -> bool:
        """Whether a request needs a slot, and none is free."""
        return not self.pool.num_free_slots and request.request_id not in self._slots

    def ensure(self, request: Request) -> None:
        """Gives a request a slot if it has none; one must be free."""
        if request.request_id not in self._slots:
            self._slots[request.request_id] = self.pool.allocate()

    def release(self, request: Request) -> None:
        """Takes back the slot of a request, if it has one."""
        slot = self._slots.pop(request.request_id, None)
        if slot is not None:
            self.pool.release(slot)

    def exchange(self, request: Request, slot: int) -> int:
        """Gives a request another slot. Returns the one that it had."""
        old, self._slots[request.request_id] = self._slots[request.request_id], slot
        return old

    def copy(self, parent: Request, child: Request) -> bool:
        """Gives a child without a slot a copy of the parent's, if that has one. Returns False if none is free."""
        return self._copy(self.find(parent), child)

    def reassign(
        self, requests: Sequence[Request], parents: Sequence[int], copied: Sequence[bool]
    ) -> list[int]:
        """Gives each request i a copy of the slot of requests[parents[i]], all at once.

        Args:
            copied: of each request, whether it needs what is in the slot. One that does not may have no slot then.

        Returns:
            The indices of the requests for which no slot was free: they have none.
        """
        sources = [self.find(requests[parent]) for parent in parents]
        children = [index for index, parent in enumerate(parents) if parent != index]
        heirs: dict[int, int] = {}  # slot by child
        for index in children:
            parent = parents[index]
            slot = self.find(requests[parent])
            if parents[parent] != parent and copied[index] and slot is not None:
                # The parent goes: its first child takes over its slot.
                heirs[index] = self._slots.pop(requests[parent].request_id)
        for index in children:
            self.release(requests[index])
        for index, slot in heirs.items():
            self._slots[requests[index].request_id] = slot
        return [
            index
            for index in children
            if index not in heirs
            and copied[index]
            and not self._copy(sources[index], requests[index])
        ]

    def _copy(self, source: int | None, child: Request) -> bool:
        if source is None:
            return True
        if not self.pool.num_free_slots:
            return False
        self.ensure(child)
        self._block_ops.append(copy_slot(source, self.of(child)))
        return True

    def check_integrity(self) -> None:
        """Asserts that each request has a slot of its own."""
        assert len(set(self._slots.values())) == len(self._slots)
        assert len(self._slots) + self.pool.num_free_slots == self.pool.num_slots

    @property
    def holders(self) -> set[str]:
        """The ids of the requests with a slot."""
        return set(self._slots)


def copy_slot(source: int, target: int) -> Copy:
    """The copy of one slot to another."""
    return Copy(Slot(SlotKind.STATES, source), Slot(SlotKind.STATES, target))
