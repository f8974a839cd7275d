"""The state pool: which slots of recurrent states are free."""


class StatePool:
    """Owns the slots; each holds the recurrent states of one request in all layers.

    Args:
        num_slots: at least 1.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots))[::-1]

    @property
    def num_free_slots(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A free slot; there must be one. What it holds is undefined: a text begins with zeros."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        assert 0 <= slot < self.num_slots and slot not in self._free
        self._free.append(slot)
