"""The block table of one request in one group of layers."""

import hashlib
from array import array
from collections.abc import Iterable
from typing import TypeAlias

from pellucid.scheduling.block import Block, BlockKey
from pellucid.scheduling.request import Request

Place: TypeAlias = tuple[int, int]  # group, index in a request's block table of the group
# The entry of a block that has left the window and was freed: attention does not read this entry.
FREED = Block(-1)


class BlockTable:
    """The blocks of one request in one group, in order: token p is in slot p % block_size of block
    p // block_size.

    Args:
        request: whose blocks these are.
        block_size: tokens per block.
        group: number of the group.
        window: of the group; None: its layers see all tokens.

    Attributes:
        blocks, keys, num_freed: for the manager to read; the methods change them. There are keys of as many
            blocks as somebody asked for. The first `num_freed` blocks are `FREED`.
    """

    __slots__ = (
        "_block_ids",
        "_block_size",
        "blocks",
        "group",
        "keys",
        "num_freed",
        "request",
        "window",
    )

    def __init__(self, request: Request, block_size: int, group: int, window: int | None) -> None:
        self.request = request
        self.group = group
        self.window = window
        self.blocks: list[Block] = []
        self.keys: list[BlockKey] = []
        self.num_freed = 0
        self._block_size = block_size
        self._block_ids: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Made once for each change: a decode asks for them at every step."""
        if self._block_ids is None:
            self._block_ids = tuple(block.block_id for block in self.blocks)
        return self._block_ids

    @property
    def held(self) -> list[Block]:
        """The blocks without the freed ones."""
        return self.blocks[self.num_freed :] if self.num_freed else self.blocks

    def num_freeable(self, num_blocks: int) -> int:
        """Of the blocks before `num_blocks`, those that become free if the table gives them up."""
        return sum(block.ref_count == 1 for block in self.blocks[self.num_freed : num_blocks])

    def append(self, blocks: Iterable[Block]) -> None:
        self.blocks += blocks
        self._block_ids = None

    def replace(self, index: int, block: Block) -> None:
        self.blocks[index] = block
        self._block_ids = None

    def cut(self, num_blocks: int) -> list[Block]:
        """Removes the blocks after the first `num_blocks`; returns the held ones, the last one first."""
        removed = self.blocks[max(num_blocks, self.num_freed) :]
        del self.blocks[num_blocks:]
        self.num_freed = min(self.num_freed, num_blocks)
        self._block_ids = None
        return removed[::-1]

    def free(self, num_blocks: int) -> list[Block]:
        """Makes the first `num_blocks` entries `FREED`, also those that the table does not have yet; returns
        the blocks that were there."""
        removed = self.blocks[self.num_freed : num_blocks]
        self.blocks[:num_blocks] = [FREED] * num_blocks
        self.num_freed = num_blocks
        self._block_ids = None
        return removed

    def fork(self, request: Request, num_tokens: int) -> "BlockTable":
        """A table of another request with the blocks of the first `num_tokens` positions, which it does not
        own yet."""
        num_blocks = -(-num_tokens // self._block_size)
        table = BlockTable(request, self._block_size, self.group, self.window)
        table.blocks = self.blocks[:num_blocks]
        table.keys = self.keys[: num_tokens // self._block_size]
        table.num_freed = min(self.num_freed, num_blocks)
        return table

    def key(self, index: int) -> BlockKey:
        """What block `index` of the request's tokens holds, within its salt and its group."""
        keys = self.keys
        while len(keys) <= index:
            start = len(keys) * self._block_size
            token_ids = tuple(self.request.token_ids(start, start + self._block_size))
            parent = keys[-1].block_hash if keys else self._root()
            digest = hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
            keys.append(
                BlockKey(digest, parent, len(keys), token_ids, self.group, self.request.caller)
            )
        return keys[index]

    def _root(self) -> bytes:
        """The parent hash of the first block. No salt gives one group the hash of another: their hash
        functions differ."""
        salt = self.request.cache_salt
        if self.group == 0:
            return hashlib.sha256(salt).digest()
        person = f"group {self.group}".encode()
        return hashlib.blake2b(salt, digest_size=32, person=person).digest()
