"""The log of a pool: what happens to its blocks or its snapshots, as rows of an event."""

from typing import Generic, TypeVar

Row = TypeVar("Row")


class OpLog(Generic[Row]):
    """Rows in order.

    Attributes:
        active: whether there is a subscriber; ask before `add`.
        rows: since the last `take`.
    """

    def __init__(self) -> None:
        self.active = False
        self.rows: list[Row] = []
        self._groups: list[int] = []

    def add(self, row: Row, group: int = 0) -> None:
        """Args: group: of the block table that changes."""
        self.rows.append(row)
        self._groups.append(group)

    def take(self) -> tuple[tuple[Row, ...], tuple[int, ...]]:
        """The rows since the last call, and the group of each."""
        rows, groups = tuple(self.rows), tuple(self._groups)
        self.rows.clear()
        self._groups.clear()
        return rows, groups
