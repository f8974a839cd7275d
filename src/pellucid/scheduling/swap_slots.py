"""Room outside of the pool for blocks of preempted requests."""


class SwapSlots:
    """Which slots of the swap file are taken."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    def take(self) -> int | None:
        """A slot, or None if all are taken."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def check_integrity(self, taken: list[int]) -> None:
        """`taken`: every slot that somebody holds."""
        assert sorted([*self._free, *taken]) == list(range(self.num_slots))
