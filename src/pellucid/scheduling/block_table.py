"""The blocks of one request, in order."""

from pellucid.scheduling.block_pool import Block


class BlockTable:
    """A request's tokens p sit in slot p % block_size of block p // block_size.

    Attributes:
        blocks: may be changed by the manager, which calls `changed` afterwards.
        hashes: of the full blocks that the request's tokens make, as far as they were asked for.
    """

    __slots__ = ("_block_ids", "blocks", "hashes")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.hashes: list[bytes] = []
        self._block_ids: tuple[int, ...] | None = ()

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Made once for each change: a decode asks for them at every step."""
        if self._block_ids is None:
            self._block_ids = tuple(block.block_id for block in self.blocks)
        return self._block_ids

    def changed(self) -> None:
        self._block_ids = None
