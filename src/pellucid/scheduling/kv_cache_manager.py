"""Which blocks belong to which request: the logical side of the paged KV cache."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence

from pellucid.scheduling.block_ops import BlockOp, CopyBlock, LoadBlock, SaveBlock
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_table import BlockTable
from pellucid.scheduling.prefix_store import PrefixStore
from pellucid.scheduling.request import Request


class KVCacheManager:
    """Owns the block tables, and notes the work on block contents that its decisions ask for.

    A block that others use too is never written: whoever would write its next token into it gets a
    copy first.

    Args:
        block_pool: where blocks come from.
        block_size: tokens per block.
        enable_prefix_caching: seal full blocks and find them again for other requests.
        prefix_store: where blocks are kept that the pool has given away.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        block_size: int,
        enable_prefix_caching: bool = True,
        prefix_store: PrefixStore | None = None,
    ) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._prefix_store = prefix_store
        self._tables: dict[str, BlockTable] = {}
        self._block_ops: list[BlockOp] = []

    def block_ids(self, request: Request) -> tuple[int, ...]:
        table = self._tables.get(request.request_id)
        return table.block_ids if table is not None else ()

    def num_blocks(self, request: Request) -> int:
        table = self._tables.get(request.request_id)
        return len(table) if table is not None else 0

    def fits_alone(self, num_tokens: int) -> bool:
        """Whether a sequence of this length fits into the pool when nobody else is there."""
        return self._blocks_for(num_tokens) <= self.block_pool.num_blocks

    def take_block_ops(self) -> tuple[BlockOp, ...]:
        """The work noted since the last call, in order. It has to be done before the next forward."""
        ops = tuple(self._block_ops)
        self._block_ops.clear()
        return ops

    def match_prefix(self, request: Request) -> int:
        """Gives a request the longest run of sealed blocks that its tokens begin with.

        The blocks that it has already are the beginning of that run. The last token is never taken
        from the cache: its logits have to be computed.

        Returns:
            The number of tokens whose K and V are there.
        """
        table = self._table(request)
        if request.num_computed_tokens < len(table) * self.block_size:
            return request.num_computed_tokens  # its last block is not full: nothing can follow it
        for index in range(len(table), self._num_matchable_blocks(request)):
            block = self.block_pool.find(
                self._block_hash(request, index), self._block_tokens(request, index)
            )
            if block is None:
                break
            self.block_pool.share(block)
            table.blocks.append(block)
        table.changed()
        return len(table) * self.block_size

    def load_prefix(self, request: Request) -> int:
        """Continues the run of `match_prefix` from the prefix store, into blocks allocated since.

        Returns:
            The number of tokens whose K and V are there, once the noted work is done.
        """
        num_tokens = request.num_computed_tokens
        if self._prefix_store is None or num_tokens % self.block_size:
            return num_tokens
        table = self._tables[request.request_id]
        for index in range(num_tokens // self.block_size, self._num_matchable_blocks(request)):
            block_hash = self._block_hash(request, index)
            token_ids = self._block_tokens(request, index)
            payload = self._prefix_store.find(block_hash, token_ids)
            if payload is None:
                break
            block = table.blocks[index]
            self._block_ops.append(LoadBlock(block.block_id, payload))
            self.block_pool.seal(block, block_hash, token_ids)
            num_tokens += self.block_size
        return num_tokens

    def num_lacking_blocks(self, request: Request, num_tokens: int) -> int:
        """Free blocks that `allocate` would need beyond those that there are; not below 0."""
        table = self._table(request)
        num_needed = self._blocks_for(num_tokens) - len(table) + self._shares_next(request, table)
        return max(0, num_needed - self.block_pool.num_free_blocks)

    def num_exclusive_blocks(self, request: Request) -> int:
        """Blocks that would be free if this request gave all back."""
        return sum(block.ref_count == 1 for block in self._table(request).blocks)

    def allocate(self, request: Request, num_tokens: int) -> bool:
        """Makes room for positions num_computed_tokens .. num_tokens - 1, for the request to write.

        Returns:
            False, and nothing changed, if blocks lack.
        """
        if self.num_lacking_blocks(request, num_tokens):
            return False
        table = self._table(request)
        written = request.num_computed_tokens // self.block_size
        if self._shares_next(request, table):
            self._copy_on_write(table, written)
        elif written < len(table):
            self.block_pool.unseal(table.blocks[written])
        num_missing = self._blocks_for(num_tokens) - len(table)
        if num_missing > 0:
            table.blocks.extend(self.block_pool.allocate(num_missing))
            table.changed()
        return True

    def fork(self, parent: Request, child: Request) -> None:
        """Gives a child without blocks what the parent has computed: it shares the parent's blocks.

        The partial last one is shared too; the first of them to write into it gets a copy.
        """
        assert self.num_blocks(child) == 0
        self._tables[child.request_id] = self._fork(parent)

    def reassign(self, members: Sequence[Request], parents: Sequence[int]) -> None:
        """Makes each member i a fork of members[parents[i]] as it is now, all at once."""
        forks = [self._fork(members[parent]) for parent in parents]
        for member, table in zip(members, forks, strict=True):
            self.release(member)
            self._tables[member.request_id] = table

    def roll_back(self, request: Request, num_tokens: int) -> None:
        """Gives back the blocks beyond the first `num_tokens` positions, from the tail."""
        table = self._table(request)
        num_kept = self._blocks_for(num_tokens)
        if num_kept < len(table):
            self.block_pool.release(reversed(table.blocks[num_kept:]))
            del table.blocks[num_kept:]
            table.changed()

    def give_back(self, request: Request, num_blocks: int) -> None:
        """Gives back blocks from the tail until `num_blocks` of them are free, or none is left."""
        table = self._table(request)
        while num_blocks > 0 and table.blocks:
            block = table.blocks.pop()
            self.block_pool.release([block])
            num_blocks -= block.ref_count == 0
        table.changed()

    def seal(self, request: Request, num_computed_before: int) -> None:
        """Makes the blocks findable that have become full since `num_computed_before`."""
        if not self.enable_prefix_caching:
            return
        first = num_computed_before // self.block_size
        for index in range(first, request.num_computed_tokens // self.block_size):
            block = self._tables[request.request_id].blocks[index]
            block_hash = self._block_hash(request, index)
            token_ids = self._block_tokens(request, index)
            if self.block_pool.seal(block, block_hash, token_ids) and self._prefix_store:
                self._block_ops.append(SaveBlock(block.block_id, block_hash, token_ids))

    def release(self, request: Request) -> None:
        """Gives all blocks back, the tail first, so that the longest-lived prefix is evicted last."""
        self.roll_back(request, 0)

    def forget(self, request: Request) -> None:
        """Drops what is kept about a request that has ended."""
        self.release(request)
        self._tables.pop(request.request_id, None)

    def check_integrity(self) -> None:
        self.block_pool.check_integrity()
        owners = Counter(block for table in self._tables.values() for block in table.blocks)
        assert all(count == block.ref_count for block, count in owners.items())
        assert len(owners) + self.block_pool.num_free_blocks == self.block_pool.num_blocks
        for table in self._tables.values():
            assert table.block_ids == tuple(block.block_id for block in table.blocks)

    def _table(self, request: Request) -> BlockTable:
        return self._tables.setdefault(request.request_id, BlockTable())

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_matchable_blocks(self, request: Request) -> int:
        """Full blocks of a request that do not hold its last token."""
        # Logits of every prompt position are needed for prompt_logprobs, so all are computed.
        if not self.enable_prefix_caching or request.params.prompt_logprobs is not None:
            return 0
        return (request.num_tokens - 1) // self.block_size

    def _shares_next(self, request: Request, table: BlockTable) -> bool:
        """Whether the block that the next token is written into has other owners."""
        # Only this block of the table can hold contents that others use: those after it are new.
        index = request.num_computed_tokens // self.block_size
        return index < len(table) and table.blocks[index].ref_count > 1

    def _fork(self, parent: Request) -> BlockTable:
        """A table that shares the blocks of what the parent has computed."""
        source, table = self._table(parent), BlockTable()
        table.blocks = source.blocks[: self._blocks_for(parent.num_computed_tokens)]
        table.hashes = source.hashes[: parent.num_computed_tokens // self.block_size]
        table.changed()
        for block in table.blocks:
            self.block_pool.share(block)
        return table

    def _copy_on_write(self, table: BlockTable, index: int) -> None:
        (copy,) = self.block_pool.allocate(1)
        source = table.blocks[index]
        self._block_ops.append(CopyBlock(source.block_id, copy.block_id))
        self.block_pool.release([source])
        table.blocks[index] = copy
        table.changed()

    def _block_tokens(self, request: Request, index: int) -> tuple[int, ...]:
        return tuple(request.token_ids(index * self.block_size, (index + 1) * self.block_size))

    def _block_hash(self, request: Request, index: int) -> bytes:
        """Hash of block `index` and of everything before it, within the request's salt."""
        hashes = self._table(request).hashes
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else hashlib.sha256(request.cache_salt).digest()
            tokens = array("q", self._block_tokens(request, len(hashes))).tobytes()
            hashes.append(hashlib.sha256(parent + tokens).digest())
        return hashes[index]
