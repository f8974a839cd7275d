"""The blocks of one request, in order."""

from pellucid.scheduling.block import Block
from pellucid.scheduling.block_key import BlockKey
from pellucid.scheduling.request import Request


class BlockTable:
    """A request's tokens p sit in slot p % block_size of block p // block_size.

    Attributes:
        request: whose it is.
        blocks: the manager changes them, and calls `changed` afterwards.
        keys: of the full blocks that the request's tokens make, as far as they were asked for.
        swapped: by index, the swap slots that hold contents of blocks that were given back.
    """

    __slots__ = ("_block_ids", "blocks", "keys", "request", "swapped")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.blocks: list[Block] = []
        self.keys: list[BlockKey] = []
        self.swapped: dict[int, int] = {}
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
