"""The block restorer: moves block contents to the swap file, and brings offloaded contents back on admission."""

from pellucid.facts.formulas import BlockNeeds
from pellucid.scheduling.block import Block
from pellucid.scheduling.block_ops import BlockOps, Load, Slot, SwapIn
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_table import BlockTable
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.prefix_finder import Extension, PrefixFinder
from pellucid.scheduling.recurrent_states import RecurrentStates
from pellucid.scheduling.request_tables import RequestTables


class BlockRestorer:
    """Extends the block tables of requests with blocks whose contents are in the swap file or in the prefix store.

    Args:
        block_pool: owns the blocks.
        offload: what is in the swap file and in the prefix store.
        states: restores the recurrent states at the end of the blocks.
        finder: finds the offloaded blocks of a request.
        needs: says which blocks a token sees.
        block_ops: gets the operations that move the contents.
        seals_restored: whether full blocks are published once they are brought back.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        offload: Offload,
        states: RecurrentStates,
        finder: PrefixFinder,
        needs: BlockNeeds,
        block_ops: BlockOps,
        seals_restored: bool,
    ) -> None:
        self._pool = block_pool
        self._offload = offload
        self._states = states
        self._finder = finder
        self._needs = needs
        self._block_ops = block_ops
        self._seals_restored = seals_restored

    def swap_out(self, table: BlockTable, index: int, block: Block) -> None:
        """Writes the contents of a block that has left a table to the swap file if the block was full, or if it
        was the last one and the recurrent states at its end are swapped out as well.

        Args:
            index: that the block had in the table.
        """
        request = table.request
        num_tokens = request.num_computed_tokens // self._needs.block_size * self._needs.block_size
        if self._offload.swapped.num_state_tokens(request.request_id) is not None:
            num_tokens = request.num_computed_tokens
        if index * self._needs.block_size < num_tokens:
            place = (table.group, index)
            op = self._offload.swapped.swap_out(request.request_id, place, block.block_id)
            if op is not None:
                self._block_ops.add(op)
                self._pool.log.add(("O", block.block_id, op.swap_slots[0], None))

    def start_reading(self, tables: RequestTables) -> bool:
        """Asks the prefix store for blocks of a waiting request that are neither in the pool nor in the swap
        file. It asks once for each admission.

        Returns:
            Whether the request has to wait: until its blocks have been read, or, if the limit of blocks
            to read is reached, until other requests have got theirs.
        """
        stored, request = self._offload.reads, tables.request
        if not stored.has_prefix_store or stored.has_asked(request.request_id):
            return False
        num_found = self._finder.find(tables).num_blocks
        if tables.ends_within_a_block or num_found >= self._finder.num_matchable_blocks(request):
            return False
        if stored.num_readable_blocks < self._finder.least_to_read:
            if stored.is_reading:
                return True
            stored.drop_reads_that_wait()  # of requests that come after this one
        to_read = self._finder.blocks_to_read(tables, stored.num_readable_blocks)
        if not (to_read.keys or self._states.exist):
            return False
        if to_read.prefixes:
            self._block_ops.add(stored.start_reading(request.request_id, *to_read))
        return bool(to_read.prefixes)

    def restore(self, tables: RequestTables) -> tuple[int, int]:
        """Extends the tables of a request on admission with blocks from the pool, the swap file and the prefix
        store, as far as all groups have them. The request keeps no swap slots.

        Returns:
            The computed tokens, and how many of them were read from the prefix store.
        """
        num_tokens, num_loaded_tokens = tables.request.num_computed_tokens, 0
        if not tables.ends_within_a_block:
            extension = self._finder.find_extension(tables)
            if extension is not None and self._can_extend(tables, extension):
                num_loaded_tokens = self._extend(tables, extension)
                num_tokens = extension.num_tokens
                self._states.restore(tables.first, num_tokens)
        self._offload.drop(tables.request.request_id)
        return num_tokens, num_loaded_tokens

    def _can_extend(self, tables: RequestTables, extension: Extension) -> bool:
        """Whether there are free blocks for the extension, and for the tokens of the step after it."""
        num_tokens, more = extension
        num_free, num_needed = self._pool.num_free_blocks, 0
        for table, blocks in zip(tables.by_group, more, strict=True):
            end = tables.required_length(table, num_tokens, tables.request.num_tokens)
            num_needed += end - -(-num_tokens // self._needs.block_size) + blocks.count(None)
            num_free -= sum(block is not None and not block.ref_count for block in blocks)
            num_free += table.num_freeable(self._needs.first_block(num_tokens, table.window))
        return num_needed <= num_free

    def _extend(self, tables: RequestTables, extension: Extension) -> int:
        """Extends the tables of a request. Returns the tokens that were read from the prefix store."""
        num_tokens, more = extension
        for table, blocks in zip(tables.by_group, more, strict=True):
            tables.free_before(table, num_tokens)
            for block in blocks:
                if block is not None:
                    self._pool.share(block)
        loaded: set[int] = set()  # indices
        for table, blocks in zip(tables.by_group, more, strict=True):
            for sealed in blocks:
                index = len(table)
                if sealed is not None:
                    tables.log_share(table, sealed)
                    table.append([sealed])
                    continue
                (block,) = tables.append_free(table, 1)
                is_full = (index + 1) * self._needs.block_size <= num_tokens
                if isinstance(self._bring_back(table, index, block, is_full), Load):
                    loaded.add(index)
        return len(loaded) * self._needs.block_size

    def _bring_back(
        self, table: BlockTable, index: int, block: Block, is_full: bool
    ) -> SwapIn | Load:
        """Fills a table's block `index` from the swap file, or from what the prefix store has read."""
        request_id, block_id = table.request.request_id, block.block_id
        op: SwapIn | Load | None = self._offload.swapped.swap_in(
            request_id, (table.group, index), block_id
        )
        if isinstance(op, SwapIn):
            self._pool.log.add(("I", block_id, op.swap_slots[0], None))
        else:
            block_hash = table.key(index).block_hash
            op = self._offload.reads.load(request_id, Slot.block(block_id), block_hash)
            self._pool.log.add(("L", block_id, request_id, None), table.group)
        self._block_ops.add(op)
        if self._seals_restored and is_full:
            self._pool.seal(block, table.key(index), request_id)
        return op
