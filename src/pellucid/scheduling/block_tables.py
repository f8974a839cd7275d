"""The block tables of a request, one for each group of layers: takes, shares, copies and gives back their blocks."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pellucid.facts.formulas import BlockNeeds
from pellucid.scheduling.block import Block, BlockKey, CacheSalt
from pellucid.scheduling.block_ops import BlockOp, Copy, Slot, SlotKind
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import FREED_BLOCK

Place: TypeAlias = tuple[int, int]  # group, index in a request's block table of the group
# The entry of a block that has left the window and was freed: attention does not read this entry.
FREED = Block(FREED_BLOCK)


def root_hash(salt: CacheSalt, group: int) -> bytes:
    """The parent hash of the first block of a request.

    No salt gives one group the hash of another: their hash functions differ.

    Args:
        salt: of the request.
        group: of layers.
    """
    text = salt.text.encode()
    if group == 0:
        return hashlib.sha256(text).digest()
    return hashlib.blake2b(text, digest_size=32, person=f"group {group}".encode()).digest()


def hashed_bytes(token_ids: Sequence[int]) -> bytes:
    """Tokens as they are hashed."""
    return array("q", token_ids).tobytes()


def hash_of_block(parent_hash: bytes, tokens: bytes) -> bytes:
    """The hash of a block and of everything before it.

    Args:
        tokens: `hashed_bytes` of the block.
    """
    return hashlib.sha256(parent_hash + tokens).digest()


@dataclass(eq=False, slots=True)
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

    request: Request
    _block_size: int
    group: int
    window: int | None
    blocks: list[Block] = field(default_factory=list)
    keys: list[BlockKey] = field(default_factory=list)
    num_freed: int = 0
    _block_ids: tuple[int, ...] | None = None

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
            caller, salt = self.request.caller, self.request.cache_salt
            parent = keys[-1].block_hash if keys else root_hash(salt, self.group)
            digest = hash_of_block(parent, hashed_bytes(token_ids))
            keys.append(BlockKey(digest, parent, len(keys), token_ids, self.group, caller, salt))
        return keys[index]


class RequestTables:
    """A request's block tables. All tables of a waiting request have the same length.

    A block with several owners is never written: the request gets a copy of it first.

    Args:
        request: whose tables these are.
        block_pool: owns the blocks.
        needs: says which blocks each group needs.
        block_ops: gets the copies of blocks.
        tables: one for each group, those without a window first; left out, empty ones.
    """

    __slots__ = ("_block_ops", "_needs", "_pool", "by_group", "first", "request")

    def __init__(
        self,
        request: Request,
        block_pool: BlockPool,
        needs: BlockNeeds,
        block_ops: list[BlockOp],
        tables: Sequence[BlockTable] | None = None,
    ) -> None:
        self.request = request
        self._pool = block_pool
        self._needs = needs
        self._block_ops = block_ops
        self.by_group = tables or [
            BlockTable(request, needs.block_size, group, window)
            for group, window in enumerate(needs.windows)
        ]
        self.first = self.by_group[0]

    # ---- queries

    @property
    def num_blocks(self) -> int:
        """Blocks that the request holds, of all groups."""
        return sum([len(table.blocks) - table.num_freed for table in self.by_group])

    @property
    def num_positions(self) -> int:
        """Positions up to the end of the last block."""
        return len(self.first) * self._needs.block_size

    @property
    def ends_within_a_block(self) -> bool:
        """Whether a waiting request's last block is not full, so that no other block can follow it."""
        return self.request.num_computed_tokens < self.num_positions

    def goes_on_at(self, num_tokens: int) -> bool:
        """Whether the request still has the blocks that the token at position `num_tokens` sees."""
        return num_tokens == 0 or all(
            table.num_freed <= self._needs.first_block(num_tokens, table.window)
            for table in self.by_group
        )

    def required_length(self, table: BlockTable, num_computed: int, num_tokens: int) -> int:
        """The length that a table needs for positions `num_computed` .. `num_tokens` - 1."""
        if table.window is not None:
            num_tokens = min(num_tokens, num_computed + self._needs.max_chunk)
        return -(-num_tokens // self._needs.block_size)

    def shares_next(self, table: BlockTable, num_computed: int) -> bool:
        """Whether the block that the token at position `num_computed` is written into has other owners."""
        # Only this block of the table can hold contents that others use: those after it are new.
        index = num_computed // self._needs.block_size
        return index < len(table) and table.blocks[index].ref_count > 1

    def num_needed(self, num_computed: int, num_tokens: int) -> int:
        """How many free blocks `allocate` takes."""
        num_needed = 0
        for table in self.by_group:
            end = self.required_length(table, num_computed, num_tokens)
            num_needed += max(0, end - len(table)) + self.shares_next(table, num_computed)
        return num_needed

    # ---- blocks for new tokens

    def is_writable(self, num_computed: int, num_tokens: int) -> bool:
        """Whether all blocks for positions `num_computed` .. `num_tokens` - 1, at least one, are there, the first of
        them without other owners and not in the prefix index: most decodes find it so, at every step."""
        block_size = self._needs.block_size
        written = num_computed // block_size
        for table in self.by_group:
            blocks = table.blocks
            if len(blocks) * block_size < num_tokens:
                return False
            if blocks[written].ref_count > 1 or blocks[written].key is not None:
                return False
        return True

    def unseal_next(self, num_computed: int) -> None:
        """Removes the blocks that the token at position `num_computed` is written into from the prefix index."""
        written = num_computed // self._needs.block_size
        for table in self.by_group:
            blocks = table.blocks
            if written < len(blocks) and blocks[written].key is not None:
                if blocks[written].ref_count == 1:  # of a shared block, the request gets a copy
                    self._pool.unseal(blocks[written])

    def allocate(self, num_computed: int, num_tokens: int) -> None:
        """Takes free blocks for positions `num_computed` .. `num_tokens` - 1; as many as `num_needed`
        must be free. A shared block that the first of these tokens is written into is replaced by a copy."""
        written = num_computed // self._needs.block_size
        for table in self.by_group:
            if self.shares_next(table, num_computed):
                self._copy_on_write(table, written)
            num_missing = self.required_length(table, num_computed, num_tokens) - len(table)
            if num_missing > 0:
                self.append_free(table, num_missing)

    def append_free(self, table: BlockTable, num_blocks: int) -> list[Block]:
        """Appends free blocks to a table, and returns them."""
        allocated = self._pool.allocate(num_blocks)
        if self._pool.log.active:
            for index, block in enumerate(allocated, len(table)):
                row = ("A", block.block_id, self.request.request_id, index)
                self._pool.log.add(row, table.group)
        table.append(allocated)
        return allocated

    def _copy_on_write(self, table: BlockTable, index: int) -> None:
        (copy,) = self._pool.allocate(1)
        source = table.blocks[index]
        self._block_ops.append(
            Copy(Slot(SlotKind.BLOCK, source.block_id), Slot(SlotKind.BLOCK, copy.block_id))
        )
        if self._pool.log.active:
            row = ("C", copy.block_id, source.block_id, self.request.request_id)
            self._pool.log.add(row, table.group)
        self._pool.release([source])
        table.replace(index, copy)

    # ---- blocks of other requests

    def fork(self, child: Request, num_computed: int) -> "RequestTables":
        """Tables of another request that share the blocks of the first `num_computed` positions."""
        assert self.goes_on_at(num_computed)
        tables = [table.fork(child, num_computed) for table in self.by_group]
        fork = RequestTables(child, self._pool, self._needs, self._block_ops, tables)
        for table in tables:
            for block in table.held:
                self._pool.share(block)
                fork.log_share(table, block)
        return fork

    def append_sealed(self, table: BlockTable, num_tokens: int, blocks: Sequence[Block]) -> None:
        """Appends sealed blocks to a table, the last of them before position `num_tokens`. The blocks before them,
        which the token there does not see, are freed."""
        for block in blocks:
            self._pool.share(block)
            self.log_share(table, block)
        self.free_before(table, num_tokens)
        table.append(blocks)

    def log_share(self, table: BlockTable, block: Block) -> None:
        if self._pool.log.active:
            row = ("S", block.block_id, self.request.request_id, block.ref_count)
            self._pool.log.add(row, table.group)

    # ---- giving back

    def free_before(self, table: BlockTable, num_tokens: int) -> None:
        """Gives back the blocks of a table that the token at position `num_tokens` does not see."""
        first = self._needs.first_block(num_tokens, table.window)
        if first > table.num_freed:
            self._pool.release(table.free(first))

    def free_out_of_window(self) -> None:
        """Gives back the blocks that no later token sees."""
        for table in self.by_group:
            self.free_before(table, self.request.num_computed_tokens)

    def cut(self, num_tokens: int) -> None:
        """Gives back the blocks beyond the first `num_tokens` positions, the last one first."""
        num_kept = -(-num_tokens // self._needs.block_size)
        for table in self.by_group:
            if num_kept < len(table):
                self._pool.release(table.cut(num_kept))

    # ---- events

    def log_fill(self, num_computed_before: int) -> None:
        """Records which slots of blocks were filled since `num_computed_before` positions were computed."""
        block_size, num_computed = self._needs.block_size, self.request.num_computed_tokens
        for table in self.by_group:
            for index in range(num_computed_before // block_size, -(-num_computed // block_size)):
                end = min(num_computed, (index + 1) * block_size)
                self._pool.log.add(("F", table.block_ids[index], end - index * block_size, None))
