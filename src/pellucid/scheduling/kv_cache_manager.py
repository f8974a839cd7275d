"""The KV cache manager: the block table of each request; shares, copies, publishes and finds blocks."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from pellucid.scheduling.block import Block, BlockKey
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.offloaded_blocks import OffloadedBlocks
from pellucid.scheduling.prefix_index import MissReason, PrefixMatch, PrefixMiss
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import BlockOp, CopyBlock, LoadBlock, SwapIn


class BlockTable:
    """The blocks of one request, in order: token p sits in slot p % block_size of block p // block_size.

    Args:
        request: whose blocks these are.
        block_size: tokens per block.
        blocks: the first ones; shared already.
        keys: of the first full ones.

    Attributes:
        blocks, keys: for the manager to read; the methods change them. There are keys of as many blocks
            as somebody asked for.
    """

    __slots__ = ("_block_ids", "_block_size", "_found", "_found_at", "blocks", "keys", "request")

    def __init__(
        self,
        request: Request,
        block_size: int,
        blocks: Iterable[Block] = (),
        keys: Iterable[BlockKey] = (),
    ) -> None:
        self.request = request
        self.blocks = list(blocks)
        self.keys = list(keys)
        self._block_size = block_size
        self._block_ids: tuple[int, ...] | None = None
        # Sealed blocks that may follow `blocks`, as looked up in a version of the pool.
        self._found: list[tuple[Block, BlockKey]] = []
        self._found_at: tuple[int, int] | None = None  # version of the pool, blocks in the table

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Made once for each change: a decode asks for them at every step."""
        if self._block_ids is None:
            self._block_ids = tuple(block.block_id for block in self.blocks)
        return self._block_ids

    def append(self, blocks: Iterable[Block]) -> None:
        self.blocks += blocks
        self._block_ids = None

    def replace(self, index: int, block: Block) -> None:
        self.blocks[index] = block
        self._block_ids = None

    def cut(self, num_blocks: int) -> list[Block]:
        """Removes the blocks after the first `num_blocks`; these, the last one first."""
        removed = self.blocks[num_blocks:]
        del self.blocks[num_blocks:]
        self._block_ids = None
        return removed[::-1]

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

    def find_following(self, pool: BlockPool, end: int) -> list[tuple[Block, BlockKey]]:
        """The sealed blocks that hold what follows this table's, before block `end`. They are not
        taken, so some may be gone the next time. Looked up again only as far as that can be."""
        first = len(self.blocks)
        if self._found_at == (pool.version, first):
            return self._found
        found = self._found
        if self._found_at is None or self._found_at[1] != first:
            found = []
        kept = next((i for i, (block, key) in enumerate(found) if block.key is not key), len(found))
        del found[kept:]
        for index in range(first + len(found), end):
            block = pool.index.find(self.key(index))
            if block is None or block.key is None:
                break
            found.append((block, block.key))
        self._found, self._found_at = found, (pool.version, first)
        return found

    def forget_found(self) -> None:
        self._found, self._found_at = [], None


class KVCacheManager:
    """Owns the block table of each request, and lists the work on block contents as `BlockOp`s.

    A block with several owners is never written: a request that has to write its next token into such a
    block gets a copy first.

    Args:
        block_pool: owns the blocks.
        block_size: tokens per block.
        enable_prefix_caching: publish full blocks, and find them for other requests.
        offloaded_blocks: the swap file and the prefix store; left out, there are none.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        block_size: int,
        enable_prefix_caching: bool = True,
        offloaded_blocks: OffloadedBlocks | None = None,
    ) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.offloaded = OffloadedBlocks() if offloaded_blocks is None else offloaded_blocks
        self._log = block_pool.log
        self._tables: dict[str, BlockTable] = {}
        self._block_ops: list[BlockOp] = []

    # ---- queries

    def block_ids(self, request: Request) -> tuple[int, ...]:
        table = self._tables.get(request.request_id)
        return table.block_ids if table is not None else ()

    def num_blocks(self, request: Request) -> int:
        table = self._tables.get(request.request_id)
        return len(table.blocks) if table is not None else 0

    def num_blocks_for(self, request: Request, giver: Request) -> int:
        """Blocks that a waiting request could be given if `giver` gave all of its blocks back."""
        needed = {block for block, _ in self._find_prefix(request)}
        blocks = self._table(giver).blocks
        return sum(block.ref_count == 1 and block not in needed for block in blocks)

    def num_more_blocks(self, request: Request) -> int:
        """How many blocks a request needs for all of its tokens beside those that it has."""
        return self._blocks_for(request.num_tokens) - len(self._table(request))

    def num_lacking_blocks(self, request: Request, num_tokens: int) -> int:
        """How many free blocks `allocate` would lack; at least 0."""
        table = self._table(request)
        num_needed = self._blocks_for(num_tokens) - len(table) + self._shares_next(table)
        return max(0, num_needed - self.block_pool.num_free_blocks)

    def num_lacking_to_admit(self, request: Request) -> int:
        """How many free blocks `admit` would lack; at least 0.

        Sealed blocks that hold what the request needs are looked up, not taken.
        """
        found = self._find_prefix(request)
        if not found:
            return self.num_lacking_blocks(request, request.num_tokens)
        num_needed = self._blocks_for(request.num_tokens) - len(self._table(request)) - len(found)
        num_free = self.block_pool.num_free_blocks - sum(not block.ref_count for block, _ in found)
        return max(0, num_needed - num_free)

    def owners(self) -> dict[int, list[tuple[Request, int]]]:
        """Of each block with owners, these requests and the block's index in their tables."""
        found: dict[int, list[tuple[Request, int]]] = {}
        for table in self._tables.values():
            for index, block in enumerate(table.blocks):
                found.setdefault(block.block_id, []).append((table.request, index))
        return found

    def num_wasted_slots(self) -> int:
        """Slots of blocks in use that hold no token."""
        filled: dict[int, int] = {}
        for table in self._tables.values():
            num_full, rest = divmod(table.request.num_computed_tokens, self.block_size)
            for block in table.blocks[num_full:]:
                filled[block.block_id] = max(filled.get(block.block_id, 0), rest)
                rest = 0
        return sum(self.block_size - num_tokens for num_tokens in filled.values())

    def fits_alone(self, num_tokens: int) -> bool:
        """Whether the blocks of this many tokens fit into the whole pool."""
        return self._blocks_for(num_tokens) <= self.block_pool.num_blocks

    def take_block_ops(self) -> tuple[BlockOp, ...]:
        """The operations listed since the last call, in order. They have to run before the next forward."""
        ops = tuple(self._block_ops)
        self._block_ops.clear()
        return ops

    # ---- admission

    def start_reading(self, request: Request) -> bool:
        """Asks the prefix store, once for each admission, for blocks of a waiting request that are
        neither in the pool nor in the swap file.

        Returns:
            Whether the request has to wait: until its blocks have been read, or, if the limit of blocks
            to read is reached, until other requests have got theirs.
        """
        offloaded, num_matchable = self.offloaded, self._num_matchable_blocks(request)
        if not offloaded.has_prefix_store or offloaded.has_asked(request.request_id):
            return False
        table = self._table(request)
        first = len(table) + len(self._find_prefix(request))
        if self._ends_within_a_block(table) or first >= num_matchable:
            return False
        if not offloaded.num_readable_blocks:
            if offloaded.is_reading:
                return True
            offloaded.drop_reads_that_wait()  # of requests that come after this one
        keys: dict[int, BlockKey] = {}
        for index in range(first, num_matchable):
            if len(keys) == offloaded.num_readable_blocks:
                break
            key = table.key(index)
            if key not in self.block_pool.index and not offloaded.is_swapped(
                request.request_id, index
            ):
                keys[index] = key
        if keys:
            self._block_ops.append(offloaded.start_reading(request.request_id, keys))
        return bool(keys)

    def match_prefix(self, request: Request) -> int:
        """Gives a request the longest run of sealed blocks that its tokens begin with.

        The blocks that the request has already are the beginning of this run. The last token is never taken
        from the cache: its logits have to be computed.

        Returns:
            The number of tokens whose K and V are in these blocks.
        """
        table = self._table(request)
        if self._ends_within_a_block(table):
            return request.num_computed_tokens
        found = [block for block, _ in self._find_prefix(request)]
        for block in found:
            self._share(block, request)
        table.append(found)
        table.forget_found()
        return len(table) * self.block_size

    def admit(self, request: Request) -> PrefixMatch:
        """Allocates blocks for all of a request's tokens, and restores offloaded contents into them.

        Call it after `match_prefix`, when num_lacking_blocks is 0.

        Returns:
            The positions that are computed once the listed operations have run.
        """
        miss = self._explain_miss(request, request.num_computed_tokens)
        allocated = self.allocate(request, request.num_tokens)
        assert allocated
        num_tokens, num_loaded_tokens = self._restore(request)
        if num_tokens > request.num_computed_tokens:
            miss = self._explain_miss(request, num_tokens)
        return PrefixMatch(num_tokens, num_loaded_tokens, miss)

    # ---- allocation and publication

    def allocate(self, request: Request, num_tokens: int) -> bool:
        """Makes room for positions num_computed_tokens .. num_tokens - 1, for the request to write.

        Returns:
            False, and nothing changed, if blocks lack.
        """
        table = self._table(request)
        blocks = table.blocks
        written = request.num_computed_tokens // self.block_size  # the block of the next token
        if written < len(blocks):
            block = blocks[written]
            if block.ref_count > 1:
                if self.num_lacking_blocks(request, num_tokens):
                    return False
                self._copy_on_write(table, written)
            elif block.key is not None:
                self.block_pool.unseal(block)
        num_missing = -(-num_tokens // self.block_size) - len(blocks)
        if num_missing <= 0:
            return True
        if num_missing > self.block_pool.num_free_blocks:
            return False
        allocated = self.block_pool.allocate(num_missing)
        for index, block in enumerate(allocated, len(blocks)):
            self._log.add("A", block.block_id, request.request_id, index)
        table.append(allocated)
        return True

    def seal(self, request: Request, num_computed_before: int) -> None:
        """Publishes newly filled blocks to the prefix index, and offers them to the prefix store.

        Args:
            num_computed_before: positions that were computed at the last call.
        """
        if self._log.active:
            self._log_fill(request, num_computed_before)
        first = num_computed_before // self.block_size
        last = request.num_computed_tokens // self.block_size
        if first == last or not self.enable_prefix_caching:
            return
        table = self._table(request)
        for index in range(first, last):
            block, key = table.blocks[index], table.key(index)
            if self.block_pool.seal(block, key, request.request_id):
                if (op := self.offloaded.save(block.block_id, key)) is not None:
                    self._block_ops.append(op)

    # ---- forks

    def fork(self, parent: Request, child: Request, num_tokens: int | None = None) -> None:
        """Gives a child without blocks what the parent has computed: it shares the parent's blocks.

        The partial last one is shared too; the first of them to write into it gets a copy.
        """
        assert self.num_blocks(child) == 0
        self._tables[child.request_id] = self._fork(parent, child, num_tokens)

    def reassign(self, requests: Sequence[Request], parents: Sequence[int]) -> None:
        """Makes each request i a fork of requests[parents[i]] as it is now, all at once."""
        forks = [
            (request, self._fork(requests[parent], request))
            for request, parent in zip(requests, parents, strict=True)
            if requests[parent] is not request  # its own parent keeps its blocks
        ]
        for request, table in forks:
            self.release(request)
            self._tables[request.request_id] = table
        for request in requests:  # offloaded blocks of its old text: nothing may restore them
            self.offloaded.drop(request.request_id)

    # ---- release

    def roll_back(self, request: Request, num_tokens: int) -> None:
        """Gives back the blocks beyond the first `num_tokens` positions, from the tail."""
        table = self._table(request)
        num_kept = self._blocks_for(num_tokens)
        if num_kept < len(table):
            self.block_pool.release(table.cut(num_kept))

    def give_back(self, request: Request, num_blocks: int) -> int:
        """Gives back blocks from the tail until `num_blocks` of them are free, or none is left.

        The contents of blocks that become free go to the swap file, as far as it has room.

        Returns:
            How many have become free.
        """
        table = self._table(request)
        num_freed = 0
        while num_freed < num_blocks and table.blocks:
            (block,) = table.cut(len(table) - 1)
            self.block_pool.release([block])
            if block.ref_count == 0:
                num_freed += 1
                self._swap_out(table, block)
        return num_freed

    def release(self, request: Request) -> None:
        """Gives all blocks back, the tail first, so that the longest-lived prefix is evicted last."""
        self.roll_back(request, 0)
        self.offloaded.drop(request.request_id)

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
            assert table.request.num_computed_tokens <= len(table) * self.block_size
        self.offloaded.check_integrity(self._tables.keys())

    def _table(self, request: Request) -> BlockTable:
        table = self._tables.get(request.request_id)
        if table is None:
            table = self._tables[request.request_id] = BlockTable(request, self.block_size)
        return table

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_matchable_blocks(self, request: Request) -> int:
        """Full blocks of a request that do not hold its last token."""
        # Logits of every prompt position are needed for prompt_logprobs, so all are computed.
        if not self.enable_prefix_caching or request.params.prompt_logprobs is not None:
            return 0
        return (request.num_tokens - 1) // self.block_size

    def _ends_within_a_block(self, table: BlockTable) -> bool:
        """Whether a table's last block is not full, so that no other one can follow it."""
        return table.request.num_computed_tokens < len(table) * self.block_size

    def _find_prefix(self, request: Request) -> list[tuple[Block, BlockKey]]:
        """The sealed blocks that follow those of a waiting request."""
        table = self._table(request)
        if self._ends_within_a_block(table):
            return []
        return table.find_following(self.block_pool, self._num_matchable_blocks(request))

    def _shares_next(self, table: BlockTable) -> bool:
        """Whether the block that the next token is written into has other owners."""
        # Only this block of the table can hold contents that others use: those after it are new.
        index = table.request.num_computed_tokens // self.block_size
        return index < len(table) and table.blocks[index].ref_count > 1

    def _copy_on_write(self, table: BlockTable, index: int) -> None:
        (copy,) = self.block_pool.allocate(1)
        source = table.blocks[index]
        self._block_ops.append(CopyBlock(source.block_id, copy.block_id))
        self._log.add("C", copy.block_id, source.block_id, table.request.request_id)
        self.block_pool.release([source])
        table.replace(index, copy)

    def _fork(self, parent: Request, child: Request, num_tokens: int | None = None) -> BlockTable:
        source, num_computed = self._table(parent), parent.num_computed_tokens
        if num_tokens is not None:
            num_computed = min(num_computed, num_tokens)
        table = BlockTable(
            child,
            self.block_size,
            source.blocks[: self._blocks_for(num_computed)],
            source.keys[: num_computed // self.block_size],
        )
        for block in table.blocks:
            self._share(block, child)
        return table

    def _share(self, block: Block, request: Request) -> None:
        self.block_pool.share(block)
        self._log.add("S", block.block_id, request.request_id, block.ref_count)

    def _swap_out(self, table: BlockTable, block: Block) -> None:
        """Keeps what was the last block of a table, if all of it was computed."""
        index = len(table)
        if (index + 1) * self.block_size <= table.request.num_computed_tokens:
            op = self.offloaded.swap_out(table.request.request_id, index, block.block_id)
            if op is not None:
                self._block_ops.append(op)
                self._log.add("O", op.block_id, op.swap_slot)

    def _restore(self, request: Request) -> tuple[int, int]:
        """Fills allocated blocks from the pool, the swap file and the prefix store, while they have
        the next one. The request keeps no swap slots.

        Returns:
            Tokens whose K and V are there, and those of them that the prefix store had.
        """
        table = self._table(request)
        num_tokens, num_loaded_tokens = request.num_computed_tokens, 0
        num_matchable = self._num_matchable_blocks(request)
        # What ends within a block goes on there.
        first = num_tokens // self.block_size if num_tokens % self.block_size == 0 else len(table)
        for index in range(first, (request.num_tokens - 1) // self.block_size):
            block, matchable = table.blocks[index], index < num_matchable
            found = self.block_pool.index.find(table.key(index)) if matchable else None
            if found is not None:
                self._share(found, request)
                self.block_pool.release([block])
                table.replace(index, found)
            else:
                op = self._bring_back(table, index, block.block_id, matchable)
                if op is None:
                    break
                self._block_ops.append(op)
                if isinstance(op, LoadBlock):
                    self._log.add("L", block.block_id, request.request_id)
                    num_loaded_tokens += self.block_size
                else:
                    self._log.add("I", block.block_id, op.swap_slot)
                if self.enable_prefix_caching:
                    self.block_pool.seal(block, table.key(index), request.request_id)
            num_tokens += self.block_size
        self.offloaded.drop(request.request_id)
        return num_tokens, num_loaded_tokens

    def _bring_back(
        self, table: BlockTable, index: int, block_id: int, matchable: bool
    ) -> SwapIn | LoadBlock | None:
        """Fills a block with what block `index` of a table is to hold, if it is kept outside of the pool.

        Args:
            matchable: whether it may be what somebody else has computed.
        """
        request_id = table.request.request_id
        if (swap_in := self.offloaded.swap_in(request_id, index, block_id)) is not None:
            return swap_in
        if not matchable:
            return None
        return self.offloaded.load(request_id, index, block_id, table.key(index))

    def _log_fill(self, request: Request, num_computed_before: int) -> None:
        block_ids = self.block_ids(request)
        last = (request.num_computed_tokens - 1) // self.block_size
        for index in range(num_computed_before // self.block_size, last + 1):
            end = min(request.num_computed_tokens, (index + 1) * self.block_size)
            self._log.add("F", block_ids[index], end - index * self.block_size)

    def _explain_miss(self, request: Request, num_tokens: int) -> PrefixMiss | None:
        """Why no more than `num_tokens` of a request were found; None if no more was to be found."""
        index = num_tokens // self.block_size
        if num_tokens == request.num_tokens - 1:
            return None
        if not self.enable_prefix_caching or request.params.prompt_logprobs is not None:
            return PrefixMiss(MissReason.DISABLED, num_tokens)
        # A request that kept a block that is not full goes on from there.
        if num_tokens % self.block_size or index >= self._num_matchable_blocks(request):
            return PrefixMiss(MissReason.PARTIAL_BLOCK, num_tokens)
        return self.block_pool.index.explain_miss(self._table(request).key(index))
