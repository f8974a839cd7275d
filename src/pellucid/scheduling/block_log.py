"""Notes of what happens to blocks, for those who watch."""

from pellucid.events import BlockOpRow


class BlockLog:
    """Rows of the event `kv`, in order.

    Attributes:
        active: whether anyone watches; while nobody does nothing is kept.
    """

    def __init__(self) -> None:
        self.active = False
        self._rows: list[BlockOpRow] = []

    def add(
        self, op: str, block_id: int, a: int | str | None = None, b: int | str | None = None
    ) -> None:
        if self.active:
            self._rows.append((op, block_id, a, b))

    def take(self) -> tuple[BlockOpRow, ...]:
        """The rows since the last call."""
        rows = tuple(self._rows)
        self._rows.clear()
        return rows
