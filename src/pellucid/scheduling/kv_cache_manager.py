"""The KV cache manager: the block tables of each request; shares, copies, publishes, finds and frees blocks."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pellucid.formulas import BlockNeeds
from pellucid.scheduling.block import Block, BlockKey
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_table import BlockTable
from pellucid.scheduling.offloaded_blocks import OffloadedBlocks, Place
from pellucid.scheduling.prefix_index import MissReason, PrefixMatch, PrefixMiss
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import (
    BlockOp,
    CopyBlock,
    CopyState,
    LoadBlock,
    SnapshotKey,
    SwapIn,
    SwapInState,
)
from pellucid.scheduling.state_pool import StatePool

# Least distance between two regular snapshots of a prompt's recurrent states.
SNAPSHOT_TOKENS = 2048
# Regular snapshots of one prompt take at most 1 / SNAPSHOTS_SHARE of the slots for snapshots.
SNAPSHOTS_SHARE = 4

IsThere = Callable[[BlockTable, int], bool]  # of the index of a block


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """Sealed blocks that could follow those of a waiting request. Finding them takes no block.

    Attributes:
        num_blocks: length of each block table with these blocks.
        num_sealed_blocks: length of each block table with all sealed blocks in the prefix index; more than
            `num_blocks` if there is no snapshot of recurrent states at their end.
        blocks: for each group, the blocks to append to its table, without those that have left the window.
    """

    num_blocks: int
    num_sealed_blocks: int
    blocks: tuple[Sequence[Block], ...]


class Extension(NamedTuple):
    """The blocks that are appended to the block tables of a request on admission.

    Attributes:
        num_tokens: positions with computed keys and values after that.
        blocks: for each group, without those that have left the window: a sealed block, or None for an
            offloaded one.
    """

    num_tokens: int
    blocks: Sequence[Sequence[Block | None]]


class KeptStates(NamedTuple):
    """A copy of a request's recurrent states, to which `rewind` can go back.

    Attributes:
        slot: the spare slot that holds the copy.
        num_tokens: computed tokens of the request when the copy was made.
    """

    slot: int
    num_tokens: int


class RequestTables:
    """The block tables of a request, its recurrent states, and the last result of looking up its prefix.

    Attributes:
        tables: one for each group, those without a window first. All tables of a waiting request have the
            same length.
        found: the last result of `_find_prefix`.
        found_at: the version of the pool and the length of the tables for which `found` holds.
        state_slot: slot of the recurrent states; None: the request has no states.
        kept: copy of the states from before a step with drafts; None: no copy is kept.
        snapshot_slot: slot of the snapshot that is copied to `state_slot` on admission; None: no copy.
        parts_at: position after the last sealed block that was found on admission; 0: none was found.
        latest_snapshot: tokens of the latest snapshot of the output; None: there is none.
    """

    __slots__ = (
        "found",
        "found_at",
        "kept",
        "latest_snapshot",
        "parts_at",
        "snapshot_slot",
        "state_slot",
        "tables",
    )

    def __init__(self, tables: Sequence[BlockTable]) -> None:
        self.tables = tables
        self.found: FoundPrefix | None = None
        self.found_at: tuple[int, int] | None = None
        self.state_slot: int | None = None
        self.kept: KeptStates | None = None
        self.parts_at = 0
        self.snapshot_slot: int | None = None
        self.latest_snapshot: int | None = None


class KVCacheManager:
    """Owns the block tables of each request, and lists the work on block contents as `BlockOp`s.

    A block with several owners is never written: a request that has to write its next token into such a
    block gets a copy first. Blocks that leave the window of a group are freed as the request advances.

    A request has only the recurrent states after its last computed token; states of an earlier token are gone.
    So a request of a model with such states has a slot for them as long as it has blocks, and gives back either
    all of its blocks or none. Snapshots of the states are taken at the ends of full blocks: a prefix hit is the
    longest prefix that has both its blocks and a snapshot.

    Args:
        block_pool: owns the blocks of all groups.
        block_size: tokens per block.
        enable_prefix_caching: publish full blocks, and find them for other requests.
        offloaded_blocks: the swap file and the prefix store; left out, there are none.
        windows: window of each group of layers (`kv_groups`) in tokens. Groups that see all tokens have None
            and come first.
        max_chunk: most tokens of a request in a step. Blocks of a group with a window are allocated for one
            step at a time.
        state_pool: owns the slots of recurrent states; None: the model has none.
        snapshot_tokens: about how many tokens of a long prompt lie between two snapshots.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        block_size: int,
        enable_prefix_caching: bool = True,
        offloaded_blocks: OffloadedBlocks | None = None,
        windows: Sequence[int | None] = (None,),
        max_chunk: int = 1,
        state_pool: StatePool | None = None,
        snapshot_tokens: int = SNAPSHOT_TOKENS,
    ) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        can_reuse = state_pool is None or state_pool.num_snapshots > 0
        self.enable_prefix_caching = enable_prefix_caching and can_reuse
        self.takes_snapshots = self.enable_prefix_caching and state_pool is not None
        self.state_pool = state_pool
        self._snapshot_blocks = max(1, snapshot_tokens // block_size)
        self.offloaded = OffloadedBlocks() if offloaded_blocks is None else offloaded_blocks
        self.needs = BlockNeeds(block_size, tuple(windows), max_chunk)
        self.has_windows = any(window is not None for window in windows)
        self._log = block_pool.log
        self._tables: dict[str, RequestTables] = {}
        self._block_ops: list[BlockOp] = []
        self._block_ops_error: Exception | None = None

    # ---- queries

    def block_tables(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """The ids of a request's blocks in each group; -1 for a block that has left the window and was freed."""
        return tuple([table.block_ids for table in self._tables_of(request)])

    def state_slot(self, request: Request) -> int:
        """The slot of the recurrent states of a request with blocks; 0 if the model has no states."""
        return self._tables[request.request_id].state_slot or 0

    def num_blocks(self, request: Request) -> int:
        """Blocks that a request holds, of all groups."""
        own = self._tables.get(request.request_id)
        return sum([len(table.held) for table in own.tables]) if own is not None else 0

    def num_positions(self, request: Request) -> int:
        """Positions up to the end of the last block."""
        return len(self._tables_of(request)[0]) * self.block_size

    def num_blocks_for(self, request: Request, giver: Request) -> int:
        """Blocks that a waiting request could be given if `giver` gave all of its blocks back."""
        needed = {block for blocks in self._find_prefix(request).blocks for block in blocks}
        return sum(
            block.ref_count == 1 and block not in needed
            for table in self._tables_of(giver)
            for block in table.held
        )

    def num_more_blocks(self, request: Request) -> int:
        """How many blocks a request needs for all of its tokens, besides those that it has."""
        return self.needs.most(request.num_tokens) - self.num_blocks(request)

    def num_lacking_blocks(self, request: Request, num_tokens: int) -> int:
        """How many free blocks are missing for `allocate`. At least 1 if no slot for recurrent states is free:
        requests give back their slot together with their blocks."""
        num_computed, num_needed = request.num_computed_tokens, 0
        for table in self._tables_of(request):
            num_missing = self._end(table, num_computed, num_tokens) - len(table)
            num_needed += max(0, num_missing) + self._shares_next(table)
        num_lacking = max(0, num_needed - self.block_pool.num_free_blocks)
        return num_lacking or int(self._lacks_slot(request))

    def num_lacking_to_admit(self, request: Request) -> int:
        """How many free blocks are missing for `admit`; at least 1 if no slot for recurrent states is free.

        For a group with a window, this counts the most blocks that the request will hold, although `admit`
        does not allocate all of them: so prompts that were admitted together do not stop half-way.
        Sealed blocks of the request's prefix are looked up, not taken.
        """
        found = self._find_prefix(request)
        num_computed = request.num_computed_tokens
        if not self._ends_within_a_block(request):
            num_computed = found.num_blocks * self.block_size
        num_free = self.block_pool.num_free_blocks
        num_blocks, num_needed = self._blocks_for(request.num_tokens), 0
        for table, blocks in zip(self._tables_of(request), found.blocks, strict=True):
            first = self.needs.first_block(num_computed, table.window)
            num_kept = found.num_blocks - max(first, table.num_freed)
            most = self.needs.most_of_group(request.num_tokens, table.window)
            num_needed += max(0, min(num_blocks - found.num_blocks, most - num_kept))
            num_needed += self._shares_next(table)
            num_free -= sum(not block.ref_count for block in blocks)
            num_free += sum(block.ref_count == 1 for block in table.blocks[table.num_freed : first])
        return max(0, num_needed - num_free) or int(self._lacks_slot(request))

    def num_forkable(self, request: Request, num_tokens: int) -> int:
        """Positions up to `num_tokens` that a fork of a request can share: all of them, or none if blocks that
        the next token sees were freed."""
        if self.state_pool is not None and num_tokens < request.num_computed_tokens:
            return 0  # the states are of more tokens
        num_tokens = min(num_tokens, request.num_computed_tokens)
        return num_tokens if self._goes_on_at(request, num_tokens) else 0

    def owners(self) -> dict[int, list[tuple[BlockTable, int]]]:
        """For each block with owners: the owners' block tables, and the block's index in each."""
        found: dict[int, list[tuple[BlockTable, int]]] = {}
        for own in self._tables.values():
            for table in own.tables:
                for index, block in enumerate(table.held, table.num_freed):
                    found.setdefault(block.block_id, []).append((table, index))
        return found

    def num_wasted_slots(self) -> int:
        """Slots of blocks in use that hold no token."""
        filled: dict[int, int] = {}
        for own in self._tables.values():
            for table in own.tables:
                num_full, rest = divmod(table.request.num_computed_tokens, self.block_size)
                for block in table.blocks[num_full:]:
                    filled[block.block_id] = max(filled.get(block.block_id, 0), rest)
                    rest = 0
        return sum(self.block_size - num_tokens for num_tokens in filled.values())

    def fits_alone(self, num_tokens: int) -> bool:
        """Whether a request of this many tokens fits into the whole pool."""
        return self.needs.most(num_tokens) <= self.block_pool.num_blocks

    @property
    def has_block_ops(self) -> bool:
        """Whether operations are listed that have to run before the next forward."""
        return bool(self._block_ops)

    def fail_block_ops(self, error: Exception) -> None:
        """Has the next `take_block_ops` raise `error`, because operations that were taken did not all run."""
        self._block_ops_error = error

    def take_block_ops(self) -> tuple[BlockOp, ...]:
        """The operations listed since the last call, in order. They have to run before the next forward.

        Raises:
            Exception: the error of operations that were taken before: the contents of blocks are undefined.
        """
        error, self._block_ops_error = self._block_ops_error, None
        ops = tuple(self._block_ops)
        self._block_ops.clear()
        if error is not None:
            raise error
        return ops

    # ---- admission

    def start_reading(self, request: Request) -> bool:
        """Asks the prefix store for blocks of a waiting request that are neither in the pool nor in the swap
        file. It asks once for each admission.

        Returns:
            Whether the request has to wait: until its blocks have been read, or, if the limit of blocks
            to read is reached, until other requests have got theirs.
        """
        offloaded, num_matchable = self.offloaded, self._num_matchable_blocks(request)
        if not offloaded.has_prefix_store or offloaded.has_asked(request.request_id):
            return False
        tables = self._tables_of(request)
        first = self._find_prefix(request).num_blocks
        if self._ends_within_a_block(request) or first >= num_matchable:
            return False
        least = len(tables) + offloaded.blocks_per_state
        if offloaded.num_readable_blocks < least:
            if offloaded.is_reading:
                return True
            offloaded.drop_reads_that_wait()  # of requests that come after this one
        keys: dict[Place, BlockKey] = {}
        snapshots: list[SnapshotKey] = []
        for index in range(first, num_matchable):
            if len(keys) + least > offloaded.num_readable_blocks:
                break
            for table in tables:
                key, place = table.key(index), (table.group, index)
                if key not in self.block_pool.index and not offloaded.is_swapped(
                    request.request_id, place
                ):
                    keys[place] = key
            key = tables[0].key(index)
            snapshots.append(SnapshotKey(len(keys), key.block_hash, key.token_ids))
        if self.state_pool is None:
            if keys:
                self._block_ops.append(offloaded.start_reading(request.request_id, keys))
            return bool(keys)
        if snapshots:
            read = offloaded.start_reading(request.request_id, keys, snapshots)
            self._block_ops.append(read)
        return bool(snapshots)

    def match_prefix(self, request: Request) -> int:
        """Gives a request the sealed blocks of its longest cached prefix: the longest one whose blocks all
        groups have, as far back as the window of each reaches.

        The blocks that the request has already are the beginning of this prefix. The last token is never taken
        from the cache: its logits have to be computed.

        Returns:
            The number of tokens whose K and V are in these blocks.
        """
        if self._ends_within_a_block(request):
            return request.num_computed_tokens
        own, found = self._own(request), self._find_prefix(request)
        for table, blocks in zip(own.tables, found.blocks, strict=True):
            for block in blocks:
                self._share(block, request, table.group)
            self._free_before(table, self._first_block(table, found.num_blocks))
            table.append(blocks)
        own.found = own.found_at = None
        if self.state_pool is not None:
            own.parts_at = found.num_sealed_blocks * self.block_size
            if any(found.blocks):
                num_tokens = found.num_blocks * self.block_size
                block_hash = self._snapshot_hash(own, num_tokens)
                own.snapshot_slot = self.state_pool.use(block_hash, request.request_id, num_tokens)
        return found.num_blocks * self.block_size

    def admit(self, request: Request) -> PrefixMatch:
        """Allocates blocks for a request's tokens, and restores offloaded contents into them.

        Call it after `match_prefix`, when num_lacking_to_admit is 0.

        Returns:
            The positions that are computed once the listed operations have run.
        """
        own = self._own(request)
        if self.state_pool is not None and own.state_slot is None:
            own.state_slot = self.state_pool.allocate()
        miss = self._explain_miss(request, request.num_computed_tokens)
        num_tokens, num_loaded_tokens = self._restore(request)
        if num_tokens > request.num_computed_tokens:
            miss = self._explain_miss(request, num_tokens)
        allocated = self._allocate(request, num_tokens, request.num_tokens)
        assert allocated
        if own.snapshot_slot is not None:
            assert own.state_slot is not None
            self._block_ops.append(CopyState(own.snapshot_slot, own.state_slot))
            own.snapshot_slot = None
        return PrefixMatch(num_tokens, num_loaded_tokens, miss)

    # ---- allocation and publication

    def allocate(self, request: Request, num_tokens: int) -> bool:
        """Allocates blocks for positions num_computed_tokens .. num_tokens - 1, which the request will write; in
        a group with a window only for the first `max_chunk` of them.

        Returns:
            False if too few blocks are free; then nothing was changed.
        """
        return self._allocate(request, request.num_computed_tokens, num_tokens)

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
        for table in self._tables_of(request):
            for index in range(first, last):
                block, key = table.blocks[index], table.key(index)
                if self.block_pool.seal(block, key, request.request_id):
                    if (op := self.offloaded.save(block.block_id, key)) is not None:
                        self._block_ops.append(op)
        if self.takes_snapshots and request.num_computed_tokens % self.block_size == 0:
            self._take_snapshot(request)

    def free_out_of_window(self, request: Request) -> None:
        """Gives back the blocks that no later token of a request sees."""
        for table in self._tables_of(request):
            if table.window is not None:
                first = self.needs.first_block(request.num_computed_tokens, table.window)
                self._free_before(table, first)

    # ---- forks

    def fork(self, parent: Request, child: Request, num_tokens: int | None = None) -> int:
        """Makes a child without blocks share the parent's blocks, and copies the parent's recurrent states.

        The partial last block is shared too: the first request that writes into it gets a copy.

        Args:
            num_tokens: share only these first positions; see `num_forkable`.

        Returns:
            The child's positions that are computed; 0 if no slot is free for recurrent states.
        """
        assert self.num_blocks(child) == 0
        own = self._tables[child.request_id] = self._fork(parent, child, num_tokens)
        source = self._own(parent).state_slot
        if source is not None and not self._copy_state(source, own):
            self.release(child)
            return 0
        return parent.num_computed_tokens if num_tokens is None else num_tokens

    def reassign(self, requests: Sequence[Request], parents: Sequence[int]) -> list[int]:
        """Makes each request i a fork of requests[parents[i]], all at once.

        Returns:
            The computed positions of each request: its parent's, or 0 if no slot is free for recurrent
            states.
        """
        num_computed = [requests[parent].num_computed_tokens for parent in parents]
        old = [self._own(request) for request in requests]
        sources = [old[parent].state_slot for parent in parents]
        forks = {
            index: self._fork(requests[parent], requests[index])
            for index, parent in enumerate(parents)
            if parent != index  # its own parent keeps its blocks
        }
        for index, own in forks.items():
            parent = parents[index]
            if parents[parent] != parent:  # the parent goes: its first child takes over its slot
                own.state_slot, old[parent].state_slot = old[parent].state_slot, None
        for index, own in forks.items():
            self.release(requests[index])
            self._tables[requests[index].request_id] = own
        for request in requests:  # offloaded blocks of its old text: nothing may restore them
            self.offloaded.drop(request.request_id)
        for index, own in forks.items():
            source = sources[index]
            if source is not None and own.state_slot is None:
                if not self._copy_state(source, own):
                    self.release(requests[index])
                    num_computed[index] = 0
        return num_computed

    # ---- release

    def rewind(self, request: Request, num_tokens: int) -> int:
        """Takes a request back to its first `num_tokens` positions, and gives back the blocks beyond them, the
        last one first. The blocks that the next token sees must not have been freed.

        Recurrent states are restored from the copy that `keep_states` made, or, without a copy, from the
        beginning of the text: the positions from there on have to be computed again. The copy is dropped.

        Args:
            num_tokens: at most the computed tokens.

        Returns:
            The positions that are still computed: `num_tokens` if the model has no recurrent states.
        """
        if self.state_pool is not None:
            num_tokens = self._rewind_states(request, num_tokens)
        num_kept = self._blocks_for(num_tokens)
        for table in self._tables_of(request):
            if num_kept < len(table):
                self.block_pool.release(table.cut(num_kept))
        self._release_slot(request)
        return num_tokens

    def give_back(self, request: Request, num_blocks: int) -> int:
        """Gives back blocks of a waiting request from the tail until `num_blocks` of them are free, or none is
        left. Gives back all of them if the request could not continue from the rest: blocks that the next token
        sees have left the window and were freed, or the model has recurrent states.

        The contents of blocks that become free are written to the swap file, as far as it has room.

        Returns:
            How many blocks have become free.
        """
        tables = self._tables_of(request)
        num_freed = 0
        if self.state_pool is not None:
            self._swap_out_states(request)
        while tables[0].blocks and (
            num_freed < num_blocks
            or self.state_pool is not None
            or not self._goes_on_at(request, self.num_positions(request))
        ):
            index = len(tables[0]) - 1
            for table in reversed(tables):
                for block in table.cut(index):
                    self.block_pool.release([block])
                    if block.ref_count == 0:
                        num_freed += 1
                        self._swap_out(table, index, block)
        self._release_slot(request)
        return num_freed

    def release(self, request: Request) -> None:
        """Gives all blocks back, the tail first, so that the longest-lived prefix is evicted last."""
        self.rewind(request, 0)
        self.offloaded.drop(request.request_id)

    def forget(self, request: Request) -> None:
        """Drops what is kept about a request that has ended."""
        own = self._tables.get(request.request_id)
        if own is not None and own.latest_snapshot is not None:
            self._save_snapshot(own, own.latest_snapshot)
        self.release(request)
        self._tables.pop(request.request_id, None)

    def check_integrity(self) -> None:
        self.block_pool.check_integrity()
        tables = [table for own in self._tables.values() for table in own.tables]
        owners = Counter(block for table in tables for block in table.held)
        assert all(count == block.ref_count for block, count in owners.items())
        assert len(owners) + self.block_pool.num_free_blocks == self.block_pool.num_blocks
        for table in tables:
            assert table.block_ids == tuple(block.block_id for block in table.blocks)
            assert all(block.block_id < 0 for block in table.blocks[: table.num_freed])
            num_computed = table.request.num_computed_tokens
            assert num_computed <= len(table) * self.block_size
            if num_computed:
                assert table.num_freed <= self.needs.first_block(num_computed, table.window)
        if self.state_pool is not None:
            self.state_pool.check_integrity()
            for own in self._tables.values():
                assert own.snapshot_slot is None and own.kept is None
            assert self.state_pool.num_free_spares == self.state_pool.num_spares
            slots = [own.state_slot for own in self._tables.values() if own.tables[0].blocks]
            assert None not in slots and len(set(slots)) == len(slots)
            assert len(slots) + self.state_pool.num_free_slots == self.state_pool.num_slots
        self.offloaded.check_integrity(self._tables.keys())

    # ---- tables

    def _own(self, request: Request) -> RequestTables:
        own = self._tables.get(request.request_id)
        if own is None:
            own = RequestTables(
                [
                    BlockTable(request, self.block_size, group, window)
                    for group, window in enumerate(self.needs.windows)
                ]
            )
            self._tables[request.request_id] = own
        return own

    def _tables_of(self, request: Request) -> Sequence[BlockTable]:
        return self._own(request).tables

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _first_block(self, table: BlockTable, num_blocks: int) -> int:
        """The first block that the token after the first `num_blocks` blocks sees."""
        return self.needs.first_block(num_blocks * self.block_size, table.window)

    def _end(self, table: BlockTable, num_computed: int, num_tokens: int) -> int:
        """The length that a table needs for positions `num_computed` .. `num_tokens` - 1."""
        if table.window is not None:
            num_tokens = min(num_tokens, num_computed + self.needs.max_chunk)
        return -(-num_tokens // self.block_size)

    def _ends_within_a_block(self, request: Request) -> bool:
        """Whether a waiting request's last block is not full, so that no other block can follow it."""
        return request.num_computed_tokens < self.num_positions(request)

    def _goes_on_at(self, request: Request, num_tokens: int) -> bool:
        """Whether a request still has the blocks that the token at position `num_tokens` sees."""
        return num_tokens == 0 or all(
            table.num_freed <= self.needs.first_block(num_tokens, table.window)
            for table in self._tables_of(request)
        )

    def _shares_next(self, table: BlockTable) -> bool:
        """Whether the block that the next token is written into has other owners."""
        # Only this block of the table can hold contents that others use: those after it are new.
        index = table.request.num_computed_tokens // self.block_size
        return index < len(table) and table.blocks[index].ref_count > 1

    # ---- finding blocks

    def _num_matchable_blocks(self, request: Request) -> int:
        """Full blocks of a request that do not hold its last token."""
        # Logits of every prompt position are needed for prompt_logprobs, so all are computed.
        if not self.enable_prefix_caching or request.params.prompt_logprobs is not None:
            return 0
        return (request.num_tokens - 1) // self.block_size

    def _find_prefix(self, request: Request) -> FoundPrefix:
        """The sealed blocks that may follow those of a waiting request. The look-up is repeated only after blocks
        have changed owners."""
        own = self._own(request)
        tables, first = own.tables, len(own.tables[0])
        if self._ends_within_a_block(request):
            return FoundPrefix(first, first, ((),) * len(tables))
        version = self.block_pool.version, first
        if self.state_pool is not None:
            version = self.block_pool.version + self.state_pool.version, first
        if own.found is not None and own.found_at == version:
            return own.found
        blocks: list[list[Block | None]] = [[] for _ in tables]

        def is_sealed(table: BlockTable, index: int) -> bool:
            block = self.block_pool.index.find(table.key(index))
            blocks[table.group].append(block)
            return block is not None

        num_matchable = self._num_matchable_blocks(request)
        end, num_sealed = self._deepest(
            tables, num_matchable * self.block_size, is_sealed, self._has_snapshot
        )
        own.found_at = version
        own.found = FoundPrefix(
            end,
            num_sealed,
            tuple(
                [
                    block
                    for block in blocks[table.group][
                        max(0, self._first_block(table, end) - first) : end - first
                    ]
                    if block is not None  # none is
                ]
                for table in tables
            ),
        )
        return own.found

    def _deepest(
        self,
        tables: Sequence[BlockTable],
        max_tokens: int,
        is_there: IsThere,
        has_snapshot: Callable[[bytes], bool],
    ) -> tuple[int, int]:
        """The longest prefix, in blocks, for which every group has the blocks that the next token sees.

        Args:
            max_tokens: the prefix has at most these tokens.
            is_there: whether the block with an index can be appended to a table.
            has_snapshot: whether there is a snapshot of recurrent states at the end of the block with a hash.

        Returns:
            Two lengths: of the longest prefix that ends at a snapshot (if the model has recurrent states), and
            of the longest prefix with or without a snapshot.
        """
        first = deepest = num_there = len(tables[0])
        runs = [first - table.num_freed for table in tables]  # blocks in a row, so far
        for index in range(first, self._blocks_for(max_tokens)):
            for table in tables:
                if is_there(table, index):
                    runs[table.group] += 1
                elif table.window is None:
                    return deepest, num_there  # no later token can do without this block
                else:
                    runs[table.group] = 0
            end = index + 1
            position = min(end * self.block_size, max_tokens)
            firsts = [self.needs.first_block(position, table.window) for table in tables]
            if all(runs[table.group] >= end - firsts[table.group] for table in tables):
                num_there = end
                is_full = position == end * self.block_size
                if self.state_pool is None or (
                    is_full and has_snapshot(tables[0].key(index).block_hash)
                ):
                    deepest = end
        return deepest, num_there

    def _explain_miss(self, request: Request, num_tokens: int) -> PrefixMiss | None:
        """Why only `num_tokens` of a request were found; None if these are all that could be found."""
        index = num_tokens // self.block_size
        if num_tokens == request.num_tokens - 1:
            return None
        if not self.enable_prefix_caching or request.params.prompt_logprobs is not None:
            return PrefixMiss(MissReason.DISABLED, num_tokens)
        # A request that kept a block that is not full continues there.
        if num_tokens % self.block_size or index >= self._num_matchable_blocks(request):
            return PrefixMiss(MissReason.PARTIAL_BLOCK, num_tokens)
        keys = [
            table.key(each)
            for table in self._tables_of(request)
            for each in range(self._first_block(table, index + 1), index + 1)
        ]
        missing = next((key for key in keys if key not in self.block_pool.index), None)
        if missing is None and self.state_pool is not None:
            parts_at = self._own(request).parts_at
            return PrefixMiss(MissReason.RECURRENT, num_tokens, snapshot_at_token=parts_at)
        return self.block_pool.index.explain_miss(missing or keys[-1], num_tokens)

    # ---- changing tables

    def _allocate(self, request: Request, num_computed: int, num_tokens: int) -> bool:
        """`allocate` for a request of which `num_computed` positions are computed."""
        tables = self._tables_of(request)
        written = num_computed // self.block_size  # the block of the next token
        num_needed = 0
        for table in tables:
            blocks = table.blocks
            if written < len(blocks):
                block = blocks[written]
                if block.ref_count > 1:
                    num_needed += 1
                elif block.key is not None:
                    self.block_pool.unseal(block)
            num_missing = self._end(table, num_computed, num_tokens) - len(blocks)
            if num_missing > 0:
                num_needed += num_missing
        if num_needed == 0:
            return True
        if num_needed > self.block_pool.num_free_blocks or self._lacks_slot(request):
            return False
        if self.state_pool is not None:
            own = self._own(request)
            if own.state_slot is None:
                own.state_slot = self.state_pool.allocate()
        for table in tables:
            if written < len(table) and table.blocks[written].ref_count > 1:
                self._copy_on_write(table, written)
            num_missing = self._end(table, num_computed, num_tokens) - len(table)
            if num_missing > 0:
                allocated = self.block_pool.allocate(num_missing)
                for index, block in enumerate(allocated, len(table)):
                    self._log.add("A", block.block_id, request.request_id, index, table.group)
                table.append(allocated)
        return True

    def _copy_on_write(self, table: BlockTable, index: int) -> None:
        (copy,) = self.block_pool.allocate(1)
        source = table.blocks[index]
        self._block_ops.append(CopyBlock(source.block_id, copy.block_id))
        request_id = table.request.request_id
        self._log.add("C", copy.block_id, source.block_id, request_id, table.group)
        self.block_pool.release([source])
        table.replace(index, copy)

    def _free_before(self, table: BlockTable, num_blocks: int) -> None:
        """Gives back a table's blocks before block `num_blocks`, which have left the window."""
        if num_blocks > table.num_freed:
            self.block_pool.release(table.free(num_blocks))

    def _fork(
        self, parent: Request, child: Request, num_tokens: int | None = None
    ) -> RequestTables:
        num_computed = parent.num_computed_tokens
        if num_tokens is not None:
            num_computed = min(num_computed, num_tokens)
        assert self._goes_on_at(parent, num_computed)
        forks = [table.fork(child, num_computed) for table in self._tables_of(parent)]
        for table in forks:
            for block in table.held:
                self._share(block, child, table.group)
        return RequestTables(forks)

    def _share(self, block: Block, request: Request, group: int) -> None:
        self.block_pool.share(block)
        self._log.add("S", block.block_id, request.request_id, block.ref_count, group)

    # ---- recurrent states

    def can_rewind(self, request: Request) -> bool:
        """Whether a request can be rewound after wrong drafts without computing all of its text again."""
        pool = self.state_pool
        return pool is None or pool.num_free_spares > 0 or not request.num_computed_tokens

    def keep_states(self, request: Request) -> None:
        """Copies a request's recurrent states, if the model has any, for the next `rewind`. Call it before a step
        with drafts, if `can_rewind`."""
        if self.state_pool is None or not request.num_computed_tokens:
            return
        own = self._own(request)
        assert own.state_slot is not None and own.kept is None
        own.kept = KeptStates(self.state_pool.allocate_spare(), request.num_computed_tokens)
        self._block_ops.append(CopyState(own.state_slot, own.kept.slot))

    def _rewind_states(self, request: Request, num_tokens: int) -> int:
        """Restores the states of a request after at most `num_tokens`. Returns after how many tokens."""
        assert self.state_pool is not None
        own = self._own(request)
        kept, own.kept = own.kept, None
        if num_tokens < request.num_computed_tokens:
            if kept is not None and kept.num_tokens <= num_tokens:
                assert own.state_slot is not None
                own.state_slot, kept = kept.slot, KeptStates(own.state_slot, kept.num_tokens)
                num_tokens = kept.num_tokens
            else:
                num_tokens = 0
        if kept is not None:
            self.state_pool.release_spare(kept.slot)
        return num_tokens

    def num_tokens_to_snapshot(self, request: Request, start: int) -> int | None:
        """Tokens from position `start` to the next snapshot of a prompt; None: no further snapshot is wanted. A
        step must not compute more than these, so that the snapshot can follow it.

        Snapshots are taken after the prompt's last full block; at the end of the cached blocks that the prompt
        begins with, so that the next prompt with the same beginning continues there; and at regular intervals.
        """
        if not self.takes_snapshots or request.params.prompt_logprobs is not None:
            return None
        last = self._last_snapshot_at(request)
        if start >= last:
            return None
        interval = self._snapshot_interval(request)
        parts_at = self._own(request).parts_at
        wanted = min(last, (start // interval + 1) * interval)
        return (parts_at if start < parts_at < wanted else wanted) - start

    def forget_snapshots(self) -> None:
        """Forgets all snapshots, because the contents of slots are undefined."""
        if self.state_pool is not None:
            self.state_pool.drop_snapshots()

    def _has_snapshot(self, block_hash: bytes) -> bool:
        return self.state_pool is not None and block_hash in self.state_pool

    def _last_snapshot_at(self, request: Request) -> int:
        """The end of the prompt's last full block that does not hold its last token."""
        return (request.num_prompt_tokens - 1) // self.block_size * self.block_size

    def _snapshot_interval(self, request: Request) -> int:
        """Tokens of a prompt between two regular snapshots: more for a prompt that would need too many slots."""
        assert self.state_pool is not None
        most = max(1, self.state_pool.num_snapshots // SNAPSHOTS_SHARE)
        num_blocks = -(-self._last_snapshot_at(request) // (most * self.block_size))
        return max(self._snapshot_blocks, num_blocks) * self.block_size

    def _snapshot_hash(self, own: RequestTables, num_tokens: int) -> bytes:
        """The key of a snapshot: the hash of the block that ends after a request's first `num_tokens`."""
        return own.tables[0].key(num_tokens // self.block_size - 1).block_hash

    def _take_snapshot(self, request: Request) -> None:
        """Takes a snapshot of a request's states at the end of a full block: in its prompt where
        `num_tokens_to_snapshot` wants one; in its output at each block, in place of the one before."""
        assert self.state_pool is not None
        own, num_tokens = self._own(request), request.num_computed_tokens
        if own.state_slot is None or request.params.prompt_logprobs is not None:
            return
        in_output = num_tokens >= request.num_prompt_tokens
        is_wanted = num_tokens in (own.parts_at, self._last_snapshot_at(request))
        if not (in_output or is_wanted or num_tokens % self._snapshot_interval(request) == 0):
            return
        block_hash = self._snapshot_hash(own, num_tokens)
        slot = self.state_pool.keep(block_hash, request.request_id, num_tokens)
        if slot is None:
            return
        self._block_ops.append(CopyState(own.state_slot, slot))
        if not in_output:
            self._save_snapshot(own, num_tokens)
        else:
            if own.latest_snapshot is not None:
                self.state_pool.drop(self._snapshot_hash(own, own.latest_snapshot))
            own.latest_snapshot = num_tokens

    def _save_snapshot(self, own: RequestTables, num_tokens: int) -> None:
        """Offers a request's snapshot of the states after `num_tokens` to the prefix store."""
        assert self.state_pool is not None
        key = own.tables[0].key(num_tokens // self.block_size - 1)
        slot = self.state_pool.find(key.block_hash)
        if slot is not None:
            op = self.offloaded.save_states(slot, key.block_hash, key.token_ids)
            if op is not None:
                self._block_ops.append(op)

    def _lacks_slot(self, request: Request) -> bool:
        """Whether a request needs a slot, and none is free."""
        pool = self.state_pool
        return (
            pool is not None and not pool.num_free_slots and self._own(request).state_slot is None
        )

    def _release_slot(self, request: Request) -> None:
        """Gives back the slot of a request without blocks."""
        if self.state_pool is not None:
            own = self._own(request)
            if own.state_slot is not None and not own.tables[0].blocks:
                self.state_pool.release(own.state_slot)
                own.state_slot = None

    def _copy_state(self, source_slot: int, own: RequestTables) -> bool:
        """Gives a request a copy of states. Returns False if no slot is free."""
        assert self.state_pool is not None
        if not self.state_pool.num_free_slots:
            return False
        own.state_slot = self.state_pool.allocate()
        self._block_ops.append(CopyState(source_slot, own.state_slot))
        return True

    # ---- offloaded blocks

    def _swap_out(self, table: BlockTable, index: int, block: Block) -> None:
        """Writes the contents of a table's block `index` to the swap file if the block is full, or if it is the
        last one and the recurrent states at its end are swapped out as well."""
        request = table.request
        num_tokens = request.num_computed_tokens // self.block_size * self.block_size
        if self.offloaded.swapped_states(request.request_id) is not None:
            num_tokens = request.num_computed_tokens
        if index * self.block_size < num_tokens:
            place = (table.group, index)
            op = self.offloaded.swap_out(table.request.request_id, place, block.block_id)
            if op is not None:
                self._block_ops.append(op)
                self._log.add("O", op.block_id, op.swap_slot)

    def _restore(self, request: Request) -> tuple[int, int]:
        """Extends the tables of a request on admission with blocks from the pool, the swap file and the prefix
        store, as far as all groups have them. The request keeps no swap slots.

        Returns:
            The computed tokens, and how many of them were read from the prefix store.
        """
        num_tokens, num_loaded_tokens = request.num_computed_tokens, 0
        if not self._ends_within_a_block(request):
            extension = self._find_extension(request)
            if extension is not None and self._can_extend(request, extension):
                num_loaded_tokens = self._extend(request, extension)
                num_tokens = extension.num_tokens
                if self.state_pool is not None:
                    self._restore_states(request, num_tokens)
        self.offloaded.drop(request.request_id)
        return num_tokens, num_loaded_tokens

    def _find_extension(self, request: Request) -> Extension | None:
        """The blocks in the pool, the swap file and the prefix store that can follow a request's own: up to
        where its recurrent states were swapped out, if all blocks are there; otherwise up to the last full block
        (with a snapshot). None: there are none."""
        swapped = self.offloaded.swapped_states(request.request_id)
        if swapped is not None and swapped.num_tokens < request.num_tokens:
            extension = self._extension(request, swapped.num_tokens, has_states=True)
            if extension is not None:
                return extension
        max_tokens = (request.num_tokens - 1) // self.block_size * self.block_size
        return self._extension(request, max_tokens, has_states=False)

    def _extension(self, request: Request, max_tokens: int, has_states: bool) -> Extension | None:
        """The blocks that can follow a request's own, up to `max_tokens`.

        Args:
            has_states: the swap file has the recurrent states after exactly `max_tokens`: only an extension up
                to there can use them.
        """
        tables, request_id = self._tables_of(request), request.request_id
        num_matchable = self._num_matchable_blocks(request)
        sealed: list[list[Block | None]] = [[] for _ in tables]

        def is_there(table: BlockTable, index: int) -> bool:
            place = table.group, index
            if index >= num_matchable:
                sealed[table.group].append(None)
                return self.offloaded.is_swapped(request_id, place)
            key = table.key(index)
            block = self.block_pool.index.find(key)
            sealed[table.group].append(block)
            if block is not None or self.offloaded.is_swapped(request_id, place):
                return True
            return self.offloaded.is_loaded(request_id, place, key)

        def has_snapshot(block_hash: bytes) -> bool:
            is_loaded = self.offloaded.loaded_snapshot(request_id) == block_hash
            return is_loaded or self._has_snapshot(block_hash)

        end, num_there = self._deepest(tables, max_tokens, is_there, has_snapshot)
        if has_states:
            end = num_there if num_there == self._blocks_for(max_tokens) else 0
        num_tokens, first = min(end * self.block_size, max_tokens), len(tables[0])
        if end <= first:
            return None
        return Extension(
            num_tokens,
            [
                sealed[table.group][
                    max(0, self.needs.first_block(num_tokens, table.window) - first) : end - first
                ]
                for table in tables
            ],
        )

    def _can_extend(self, request: Request, extension: Extension) -> bool:
        """Whether there are free blocks for the extension, and for the tokens of the step after it."""
        num_tokens, more = extension
        num_free, num_needed = self.block_pool.num_free_blocks, 0
        for table, blocks in zip(self._tables_of(request), more, strict=True):
            end = self._end(table, num_tokens, request.num_tokens)
            num_needed += end - self._blocks_for(num_tokens) + blocks.count(None)
            num_free -= sum(block is not None and not block.ref_count for block in blocks)
            first = self.needs.first_block(num_tokens, table.window)
            out_of_window = table.blocks[table.num_freed : first]
            num_free += sum(block.ref_count == 1 for block in out_of_window)
        return num_needed <= num_free

    def _extend(self, request: Request, extension: Extension) -> int:
        """Extends the tables of a request. Returns the tokens that were read from the prefix store."""
        num_tokens, more = extension
        tables = self._tables_of(request)
        for table, blocks in zip(tables, more, strict=True):
            self._free_before(table, self.needs.first_block(num_tokens, table.window))
            for block in blocks:
                if block is not None:
                    self.block_pool.share(block)
        loaded: set[int] = set()  # indices
        for table, blocks in zip(tables, more, strict=True):
            for sealed in blocks:
                index = len(table)
                if sealed is not None:
                    self._log.add(
                        "S", sealed.block_id, request.request_id, sealed.ref_count, table.group
                    )
                    table.append([sealed])
                    continue
                (block,) = self.block_pool.allocate(1)
                self._log.add("A", block.block_id, request.request_id, index, table.group)
                table.append([block])
                is_full = (index + 1) * self.block_size <= num_tokens
                if isinstance(self._bring_back(table, index, block, is_full), LoadBlock):
                    loaded.add(index)
        return len(loaded) * self.block_size

    def _bring_back(
        self, table: BlockTable, index: int, block: Block, is_full: bool
    ) -> SwapIn | LoadBlock:
        """Fills a table's block `index` from the swap file, or from what the prefix store has read."""
        request_id, place = table.request.request_id, (table.group, index)
        op: SwapIn | LoadBlock | None = self.offloaded.swap_in(request_id, place, block.block_id)
        if isinstance(op, SwapIn):
            self._log.add("I", block.block_id, op.swap_slot)
        else:
            op = self.offloaded.load(request_id, place, block.block_id, table.key(index))
            assert op is not None
            self._log.add("L", block.block_id, request_id, None, table.group)
        self._block_ops.append(op)
        if self.enable_prefix_caching and is_full:
            self.block_pool.seal(block, table.key(index), request_id)
        return op

    def _restore_states(self, request: Request, num_tokens: int) -> None:
        """Gives a request the recurrent states after `num_tokens`, from the swap file, a snapshot or the prefix
        store. A snapshot from the prefix store is kept for other requests."""
        assert self.state_pool is not None
        own = self._own(request)
        assert own.state_slot is not None
        own.snapshot_slot = None
        swapped = self.offloaded.swapped_states(request.request_id)
        if swapped is not None and swapped.num_tokens == num_tokens:
            self._block_ops.append(SwapInState(swapped.swap_slots, own.state_slot))
            return
        block_hash = self._snapshot_hash(own, num_tokens)
        if block_hash in self.state_pool:
            own.snapshot_slot = self.state_pool.use(block_hash, request.request_id, num_tokens)
            return
        self._block_ops.append(self.offloaded.load_states(request.request_id, own.state_slot))
        slot = self.state_pool.keep(block_hash, request.request_id, num_tokens)
        assert slot is not None
        self._block_ops.append(CopyState(own.state_slot, slot))

    def _swap_out_states(self, request: Request) -> None:
        """Writes the recurrent states of a request that gives back its blocks to the swap file."""
        own = self._own(request)
        if own.state_slot is not None and request.num_computed_tokens:
            op = self.offloaded.swap_out_states(
                request.request_id, own.state_slot, request.num_computed_tokens
            )
            if op is not None:
                self._block_ops.append(op)

    def _log_fill(self, request: Request, num_computed_before: int) -> None:
        last = (request.num_computed_tokens - 1) // self.block_size
        for table in self._tables_of(request):
            for index in range(num_computed_before // self.block_size, last + 1):
                end = min(request.num_computed_tokens, (index + 1) * self.block_size)
                self._log.add("F", table.block_ids[index], end - index * self.block_size)
