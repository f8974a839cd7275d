"""The blocks of one request, in order."""

import hashlib
from array import array

from pellucid.scheduling.block import Block
from pellucid.scheduling.block_key import BlockKey
from pellucid.scheduling.request import Request


class BlockTable:
    """A request's tokens p sit in slot p % block_size of block p // block_size.

    Args:
        request: whose it is.
        block_size: tokens per block.

    Attributes:
        blocks: the manager changes them, and calls `changed` afterwards.
        keys: of the first full blocks that the request's tokens make, as far as they were asked for.
        swapped: by index, the swap slots that hold contents of blocks that were given back.
    """

    __slots__ = ("_block_ids", "_block_size", "blocks", "keys", "request", "swapped")

    def __init__(self, request: Request, block_size: int) -> None:
        self.request = request
        self._block_size = block_size
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

    def key(self, index: int) -> BlockKey:
        """What block `index` of the request's tokens holds, within its salt."""
        keys = self.keys
        while len(keys) <= index:
            start = len(keys) * self._block_size
            token_ids = tuple(self.request.token_ids(start, start + self._block_size))
            salt = self.request.cache_salt
            parent = keys[-1].block_hash if keys else hashlib.sha256(salt).digest()
            digest = hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
            keys.append(BlockKey(digest, parent, len(keys), token_ids))
        return keys[index]
