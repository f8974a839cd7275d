"""Admission: plans which blocks a waiting request gets, and gives it these blocks."""

from dataclasses import dataclass
from typing import NamedTuple

from pellucid.facts.formulas import BlockNeeds
from pellucid.scheduling.block import Block
from pellucid.scheduling.block_ops import BlockOp, Slot, SlotKind
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_tables import BlockTable, RequestTables
from pellucid.scheduling.offload import BrokenPlanError, Offload, PrefixReads
from pellucid.scheduling.prefix_finder import (
    Extension,
    FoundPrefix,
    Loaded,
    PrefixFinder,
    Sealed,
    Swapped,
)
from pellucid.scheduling.recurrent_states import RecurrentStates
from pellucid.scheduling.request import Request


class AdmissionPlan(NamedTuple):
    """How a waiting request gets its blocks. Making a plan takes no block.

    For a group with a window, it counts the most blocks that the request will hold, although it does not get all
    of them on admission: so prompts that were admitted together do not stop half-way.

    Attributes:
        request: that waits.
        prefix: the blocks that need no computation.
        num_needed: free blocks that the request takes, those of its prefix included.
        num_missing: how many of them are not free; at least 1 if no slot for recurrent states is free: requests
            give back their slot together with their blocks.
    """

    request: Request
    prefix: FoundPrefix
    num_needed: int
    num_missing: int

    def num_reclaimable(self, victim: RequestTables) -> int:
        """Blocks that the request could be given if `victim` gave all of its blocks back."""
        held = {block for blocks in self.prefix.sealed for block in blocks}
        return sum(
            block.ref_count == 1 and block not in held
            for table in victim.by_group
            for block in table.held
        )


@dataclass(eq=False)
class Admission:
    """Makes plans, and carries them out: extends the block tables of requests with blocks that need no computation.

    Args:
        pool: owns the blocks.
        states: restores the recurrent states at the end of the blocks; None: the model has none.
        finder: finds the blocks.
        needs: says which blocks a token sees.
        block_ops: gets the operations that move the contents.
        seals_restored: whether full blocks are published once they are brought back.
    """

    _pool: BlockPool
    _states: RecurrentStates | None
    _finder: PrefixFinder
    _needs: BlockNeeds
    _block_ops: list[BlockOp]
    _seals_restored: bool

    def start_reading(self, tables: RequestTables, reads: PrefixReads) -> bool:
        """`KVCacheManager.start_reading`."""
        request = tables.request
        if not reads.has_prefix_store or reads.has_asked(request.request_id):
            return False
        num_found = self._finder.find(tables).num_tokens // self._needs.block_size
        if tables.ends_within_a_block or num_found >= self._finder.num_matchable_blocks(request):
            return False
        if reads.num_readable_blocks < self._finder.least_to_read:
            if reads.is_reading:
                return True
            reads.drop_reads_that_wait()  # of requests that come after this one
        to_read = self._finder.blocks_to_read(tables, num_found, reads.num_readable_blocks)
        if not (to_read.keys or self._states):
            return False
        if to_read.prefixes:
            self._block_ops.append(reads.start_reading(request.request_id, *to_read))
        return bool(to_read.prefixes)

    def plan(self, tables: RequestTables) -> AdmissionPlan:
        """`KVCacheManager.plan_admission`."""
        request, prefix = tables.request, self._finder.find(tables)
        num_tokens = prefix.num_tokens
        length = max(len(tables.first), num_tokens // self._needs.block_size)
        num_new = self._needs.num_blocks(request.num_tokens) - length
        num_needed = 0
        for table, blocks in zip(tables.by_group, prefix.sealed, strict=True):
            first = self._needs.first_block(num_tokens, table.window)
            num_kept = length - max(first, table.num_freed)
            most = self._needs.most_of_group(request.num_tokens, table.window)
            num_needed += max(0, min(num_new, most - num_kept))
            num_needed += tables.shares_next(table, num_tokens)
            num_needed += sum(not each.ref_count for each in blocks)
        num_missing = max(0, num_needed - self._pool.num_free_blocks)
        if self._states is not None:
            num_missing = num_missing or int(self._states.lacks_slot(request))
        return AdmissionPlan(request, prefix, num_needed, num_missing)

    def hold(self, tables: RequestTables, plan: AdmissionPlan) -> int:
        """`KVCacheManager.hold`."""
        prefix, num_tokens = plan.prefix, plan.prefix.num_tokens
        if prefix.version != self._finder.version:
            raise BrokenPlanError("the prefix index has changed since the admission was planned")
        if tables.ends_within_a_block:
            return num_tokens
        for table, blocks in zip(tables.by_group, prefix.sealed, strict=True):
            tables.append_sealed(table, num_tokens, blocks)
        self._finder.forget(plan.request)
        if self._states is not None:
            self._states.set_diverges_at(plan.request, prefix.diverges_at)
            if any(prefix.sealed):
                self._states.use_snapshot(tables.first, num_tokens)
        return num_tokens

    def restore(
        self, tables: RequestTables, plan: AdmissionPlan, offload: Offload
    ) -> tuple[int, int]:
        """Extends the tables of a request that holds the sealed blocks of its plan with the blocks behind them
        that were swapped out or read, if there is room. The request keeps no swap slots.

        Returns:
            The computed tokens, and how many of them were read from the prefix store.

        Raises:
            BrokenPlanError: the swap file or the prefix reads no longer have a block.
        """
        num_tokens, num_loaded_tokens = plan.prefix.num_tokens, 0
        restored = plan.prefix.restored
        if restored is not None and self._has_room(tables, restored):
            num_tokens = restored.num_tokens
            num_loaded_tokens = self._extend(tables, restored, offload)
            if self._states is not None:
                self._states.restore(tables.first, num_tokens)
        offload.drop(plan.request.request_id)
        return num_tokens, num_loaded_tokens

    def _has_room(self, tables: RequestTables, extension: Extension) -> bool:
        """Whether there are free blocks for the extension, and for the tokens of the step after it."""
        num_tokens, more = extension
        num_free, num_needed = self._pool.num_free_blocks, 0
        for table, blocks in zip(tables.by_group, more, strict=True):
            end = tables.required_length(table, num_tokens, tables.request.num_tokens)
            num_needed += end - self._needs.num_blocks(num_tokens)
            num_needed += sum(not (isinstance(each, Sealed) and each.ref_count) for each in blocks)
            num_free += table.num_freeable(self._needs.first_block(num_tokens, table.window))
        return num_needed <= num_free

    def _extend(self, tables: RequestTables, extension: Extension, offload: Offload) -> int:
        """Extends the tables of a request. Returns the tokens that were read from the prefix store."""
        num_tokens, more = extension
        for table, blocks in zip(tables.by_group, more, strict=True):
            tables.free_before(table, num_tokens)
            for each in blocks:
                if isinstance(each, Sealed):
                    self._pool.share(each)
        loaded: set[int] = set()  # indices
        for table, blocks in zip(tables.by_group, more, strict=True):
            for each in blocks:
                index = len(table)
                if isinstance(each, Sealed):
                    tables.log_share(table, each)
                    table.append([each])
                    continue
                (block,) = tables.append_free(table, 1)
                self._block_ops.append(self._bring_back(table, block, each, offload))
                is_full = (index + 1) * self._needs.block_size <= num_tokens
                if self._seals_restored and is_full:
                    self._pool.seal(block, table.key(index), tables.request.request_id)
                if isinstance(each, Loaded):
                    loaded.add(index)
        return len(loaded) * self._needs.block_size

    def _bring_back(
        self, table: BlockTable, block: Block, found: Swapped | Loaded, offload: Offload
    ) -> BlockOp:
        """Fills a block from the swap file, or from what the prefix store has read."""
        request_id, block_id = table.request.request_id, block.block_id
        if isinstance(found, Swapped):
            op = offload.swapped.swap_in(request_id, found.place, block_id)
            if self._pool.log.active:
                self._pool.log.add(("I", block_id, op.swap_slots[0], None))
            return op
        if self._pool.log.active:
            self._pool.log.add(("L", block_id, request_id, None), table.group)
        return offload.reads.load(request_id, Slot(SlotKind.BLOCK, block_id), found.block_hash)
