"""The KV cache manager: allocates, shares, publishes, offloads and frees the blocks of each request."""

from collections import Counter
from collections.abc import Iterable, Sequence

from pellucid.facts.formulas import BlockNeeds
from pellucid.scheduling.admission import Admission, AdmissionPlan
from pellucid.scheduling.block import Block
from pellucid.scheduling.block_ops import BlockOp, Save, Slot, SlotKind
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_tables import BlockTable, RequestTables
from pellucid.scheduling.offload import BrokenPlanError, Offload
from pellucid.scheduling.open_keys import OpenKeys, OpenSlots
from pellucid.scheduling.prefix_finder import PrefixFinder
from pellucid.scheduling.prefix_index import PrefixMatch
from pellucid.scheduling.recurrent_states import SNAPSHOT_TOKENS, RecurrentStates
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import BlockIds
from pellucid.scheduling.state_pool import StatePool


class KVCacheManager:
    """Owns the block tables of each request, and lists the work on block contents as `BlockOp`s.

    A block with several owners is never written: a request that has to write its next token into such a
    block gets a copy first. Blocks that leave the window of a group are freed as the request advances.

    A request of a model with recurrent states has a slot for them as long as it has blocks, and gives back either
    all of its blocks or none: states of an earlier token than the last one are gone. A prefix hit is then the
    longest prefix that has both its blocks and a snapshot of the states.

    With a format whose keys become codes in groups of positions, a request that runs has a slot for the keys before
    that, `OpenKeys`. Recurrent states have them in their own slots.

    Args:
        block_pool: owns the blocks of all groups.
        block_size: tokens per block.
        enable_prefix_caching: publish full blocks, and find them for other requests.
        offload: the swap file and the prefix store; left out, there are none.
        windows: window of each group of layers (`kv_groups`) in tokens. Groups that see all tokens have None
            and come first.
        max_chunk: most tokens of a request in a step. Blocks of a group with a window are allocated for one
            step at a time.
        state_pool: owns the slots of recurrent states; None: the model has none.
        snapshot_tokens: about how many tokens of a long prompt lie between two snapshots.
        open_slots: for open keys; None: the format has none, or they are with recurrent states.

    Attributes:
        block_ops: what has to be done with block contents before the next forward, in order.
        lost_by: why contents of blocks are undefined: operations that were taken did not all run.
        states: the recurrent states of each request; None: the model has none.
        open_keys: of each request; None as `open_slots`.
        offload: None: there is neither a swap file nor a prefix store.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        block_size: int,
        enable_prefix_caching: bool = True,
        offload: Offload | None = None,
        windows: Sequence[int | None] = (None,),
        max_chunk: int = 1,
        state_pool: StatePool | None = None,
        snapshot_tokens: int = SNAPSHOT_TOKENS,
        open_slots: OpenSlots | None = None,
    ) -> None:
        assert state_pool is None or open_slots is None
        self.block_pool = block_pool
        self.block_size = block_size
        can_reuse = state_pool is None or state_pool.num_snapshots > 0
        self.enable_prefix_caching = enable_prefix_caching and can_reuse
        self.offload = offload
        self.needs = BlockNeeds(block_size, tuple(windows), max_chunk)
        self.has_windows = any(window is not None for window in windows)
        self.block_ops: list[BlockOp] = []
        self.lost_by: Exception | None = None
        self.states = None
        if state_pool is not None:
            self.states = RecurrentStates(
                state_pool,
                offload,
                self.block_ops,
                block_size,
                self.enable_prefix_caching,
                snapshot_tokens,
            )
        self.open_keys = None if open_slots is None else OpenKeys(open_slots, self.block_ops)
        self.slots = self.states or self.open_keys  # of recurrent states, or of open keys
        self._finder = PrefixFinder(
            block_pool, offload, self.states, self.needs, self.enable_prefix_caching
        )
        self._admission = Admission(
            block_pool,
            self.states,
            self._finder,
            self.needs,
            self.block_ops,
            self.enable_prefix_caching,
        )
        self._tables: dict[str, RequestTables] = {}  # by request_id

    # ---- queries

    def block_tables(self, request: Request) -> BlockIds:
        return tuple([table.block_ids for table in self._tables_of(request).by_group])

    def block_tables_of(self, request_ids: Iterable[str]) -> tuple[BlockIds, ...]:
        """The block tables of requests that have blocks, in one call: each step asks for those of all its requests."""
        tables = self._tables
        return tuple(
            [tuple([table.block_ids for table in tables[each].by_group]) for each in request_ids]
        )

    def state_slot(self, request: Request) -> int:
        """The slot of the recurrent states, or open keys, of a request that can be computed; 0 if there are none."""
        return 0 if self.slots is None else self.slots.slot(request)

    def num_blocks(self, request: Request) -> int:
        """Blocks that a request holds, of all groups."""
        tables = self._tables.get(request.request_id)
        return tables.num_blocks if tables is not None else 0

    def num_positions(self, request: Request) -> int:
        """Positions up to the end of the last block."""
        return self._tables_of(request).num_positions

    def num_reclaimable(self, plan: AdmissionPlan, victim: Request) -> int:
        """Blocks that a waiting request could be given if `victim` gave all of its blocks back."""
        return plan.num_reclaimable(self._tables_of(victim))

    def num_swapped_blocks(self, request: Request) -> int:
        """Blocks of a request in the swap file."""
        offload = self.offload
        return 0 if offload is None else offload.swapped.num_blocks(request.request_id)

    def num_more_blocks(self, request: Request) -> int:
        """How many blocks a request needs for all of its tokens, besides those that it has."""
        return self.needs.most(request.num_tokens) - self.num_blocks(request)

    def num_missing_blocks(self, request: Request, num_tokens: int) -> int:
        """How many free blocks are missing for `allocate`. At least 1 if no slot for recurrent states is free:
        requests give back their slot together with their blocks."""
        num_needed = self._tables_of(request).num_needed(request.num_computed_tokens, num_tokens)
        return self._num_missing(request, num_needed)

    def num_forkable(self, request: Request, num_tokens: int) -> int:
        """Positions up to `num_tokens` that a fork of a request can share: all of them, or none if blocks that
        the next token sees were freed."""
        if self.states is not None and num_tokens < request.num_computed_tokens:
            return 0  # the states are of more tokens
        num_tokens = min(num_tokens, request.num_computed_tokens)
        return num_tokens if self._tables_of(request).goes_on_at(num_tokens) else 0

    def can_rewind(self, request: Request) -> bool:
        """Whether a request can be rewound after wrong drafts without computing all of its text again."""
        return self.states is None or self.states.can_rewind(request)

    def fits_alone(self, num_tokens: int) -> bool:
        """Whether a request of this many tokens fits into the whole pool."""
        return self.needs.most(num_tokens) <= self.block_pool.num_blocks

    def owners(self) -> dict[int, list[tuple[BlockTable, int]]]:
        """For each block with owners: the owners' block tables, and the block's index in each."""
        found: dict[int, list[tuple[BlockTable, int]]] = {}
        for tables in self._tables.values():
            for table in tables.by_group:
                for index, block in enumerate(table.held, table.num_freed):
                    found.setdefault(block.block_id, []).append((table, index))
        return found

    def num_wasted_slots(self) -> int:
        """Slots of blocks in use that hold no token."""
        filled: dict[int, int] = {}
        for tables in self._tables.values():
            for table in tables.by_group:
                num_full, rest = divmod(table.request.num_computed_tokens, self.block_size)
                for block in table.blocks[num_full:]:
                    filled[block.block_id] = max(filled.get(block.block_id, 0), rest)
                    rest = 0
        return sum(self.block_size - num_tokens for num_tokens in filled.values())

    # ---- admission

    def start_reading(self, request: Request) -> bool:
        """Asks the prefix store for blocks of a waiting request that are neither in the pool nor in the swap
        file. It asks once for each admission.

        Returns:
            Whether the request has to wait: until its blocks have been read, or, if the limit of blocks
            to read is reached, until other requests have got theirs.
        """
        if self.offload is None:
            return False
        return self._admission.start_reading(self._tables_of(request), self.offload.reads)

    def is_reading(self, request: Request) -> bool:
        """Whether the prefix store reads blocks for a request, or has read some."""
        return self.offload is not None and self.offload.reads.has_asked(request.request_id)

    def plan_admission(self, request: Request) -> AdmissionPlan:
        """How a waiting request could get blocks for all of its tokens now: the longest cached prefix whose blocks all
        groups have, as far back as the window of each reaches, and what it needs besides.

        The blocks that the request has already are the beginning of this prefix. The last token is never taken
        from the cache: its logits have to be computed.
        """
        return self._admission.plan(self._tables_of(request))

    def hold(self, plan: AdmissionPlan) -> int:
        """Gives a request the sealed blocks of its plan, so that no release for it frees them.

        Returns:
            The number of tokens whose K and V are in the request's blocks.

        Raises:
            BrokenPlanError: blocks or snapshots have come or gone since the plan was made.
        """
        return self._admission.hold(self._tables_of(plan.request), plan)

    def admit(self, plan: AdmissionPlan, explains: bool = True) -> PrefixMatch:
        """Carries out a plan after `hold`, once what it misses is free: restores offloaded contents, and allocates
        blocks for the request's other tokens.

        Args:
            explains: say why no more positions were found.

        Returns:
            The positions that are computed once the listed operations have run.

        Raises:
            BrokenPlanError: blocks or a slot are still missing, or offloaded contents are gone. The request has to end.
        """
        request = plan.request
        tables = self._tables_of(request)
        if self.states is not None:
            if self.states.lacks_slot(request):
                raise BrokenPlanError("no slot is free for the request's recurrent states")
            self.states.ensure_slot(request)
        num_tokens, num_loaded_tokens = plan.prefix.num_tokens, 0
        if self.offload is not None:
            num_tokens, num_loaded_tokens = self._admission.restore(tables, plan, self.offload)
        if self.open_keys is not None:
            self.open_keys.restart(request, num_tokens)
        miss = self._finder.explain_miss(tables, num_tokens) if explains else None
        if not self.allocate(request, request.num_tokens, num_tokens):
            raise BrokenPlanError("fewer blocks are free than the request's admission needs")
        if self.states is not None:
            self.states.copy_snapshot(request)
        return PrefixMatch(num_tokens, num_loaded_tokens, miss)

    def take_block_ops(self) -> tuple[BlockOp, ...]:
        """The operations listed since the last call, in order.

        Raises:
            Exception: `lost_by`.
        """
        taken = tuple(self.block_ops)
        self.block_ops.clear()
        if self.lost_by is not None:
            error, self.lost_by = self.lost_by, None
            raise error
        return taken

    # ---- allocation and publication

    def allocate(self, request: Request, num_tokens: int, num_computed: int | None = None) -> bool:
        """Allocates blocks for positions num_computed_tokens .. num_tokens - 1, which the request will write; in
        a group with a window only for the first `max_chunk` of them.

        Args:
            num_computed: in place of the request's computed tokens.

        Returns:
            False if too few blocks are free, or no slot for open keys; then nothing was allocated.
        """
        # Every decode asks, hence no call for tables that are there.
        tables = self._tables.get(request.request_id) or self._tables_of(request)
        if num_computed is None:
            num_computed = request.num_computed_tokens
        if self.open_keys is not None and self.open_keys.lacks_slot(request):
            return False
        if tables.is_writable(num_computed, num_tokens):
            if self.open_keys is not None:
                self.open_keys.ensure_slot(request, num_computed)
            return True
        tables.unseal_next(num_computed)
        num_needed = tables.num_needed(num_computed, num_tokens)
        if num_needed and self._num_missing(request, num_needed):
            return False
        if self.open_keys is not None:
            self.open_keys.ensure_slot(request, num_computed)
        if num_needed == 0:
            return True
        if self.states is not None:
            self.states.ensure_slot(request)
        tables.allocate(num_computed, num_tokens)
        return True

    def checkpoint(self, request: Request) -> None:
        """Copies a request's recurrent states, if the model has any, for the next `rewind`. Call it before a step
        with drafts, if `can_rewind`."""
        if self.states is not None:
            self.states.checkpoint(request)

    def seal(self, request: Request, num_computed_before: int) -> None:
        """Publishes newly filled blocks to the prefix index, and offers them to the prefix store.

        Args:
            num_computed_before: positions that were computed at the last call.
        """
        first = num_computed_before // self.block_size
        last = request.num_computed_tokens // self.block_size
        if first == last or not self.enable_prefix_caching:
            return
        tables = self._tables_of(request)
        for table in tables.by_group:
            for index in range(first, last):
                block, key = table.blocks[index], table.key(index)
                if self.block_pool.seal(block, key, request.request_id):
                    if self.offload is not None and self.offload.reads.has_prefix_store:
                        slot = Slot(SlotKind.BLOCK, block.block_id)
                        self.block_ops.append(Save(slot, key.block_hash, key.token_ids))
        if self.states is not None and request.num_computed_tokens % self.block_size == 0:
            self.states.take_snapshot(tables.first)

    def log_fill(self, request: Request, num_computed_before: int) -> None:
        """Records which slots of blocks a request has filled since `num_computed_before` positions were computed."""
        self._tables_of(request).log_fill(num_computed_before)

    def free_out_of_window(self, request: Request) -> None:
        """Gives back the blocks that no later token of a request sees."""
        self._tables_of(request).free_out_of_window()

    # ---- forks

    def fork(self, parent: Request, child: Request, num_tokens: int | None = None) -> int:
        """Makes a child without blocks share the parent's blocks, and copies the parent's recurrent states.

        The partial last block is shared too: the first request that writes into it gets a copy.

        Args:
            num_tokens: share only these first positions; see `num_forkable`.

        Returns:
            The child's positions that are computed; 0 if no slot is free for recurrent states; fewer than asked for
            if none is free for open keys.
        """
        assert self.num_blocks(child) == 0
        if num_tokens is None:
            num_tokens = parent.num_computed_tokens
        tables = self._tables_of(parent)
        if self.open_keys is not None:
            num_tokens = self._if_visible(tables, self.open_keys.fork(parent, child, num_tokens))
        self._tables[child.request_id] = tables.fork(child, num_tokens)
        if self.states is not None and not self.states.fork(parent, child):
            self.release(child)
            return 0
        return num_tokens

    def reassign(self, requests: Sequence[Request], parents: Sequence[int]) -> list[int]:
        """Makes each request i a fork of requests[parents[i]], all at once.

        Returns:
            The computed positions of each request: its parent's; 0 if no slot is free for recurrent states; fewer if
            none is free for open keys.
        """
        num_computed = [requests[parent].num_computed_tokens for parent in parents]
        if self.open_keys is not None:
            num_computed = [
                self._if_visible(self._tables_of(requests[parent]), num_tokens)
                for parent, num_tokens in zip(
                    parents, self.open_keys.reassign(requests, parents), strict=True
                )
            ]
        forks = [
            self._tables_of(requests[parent]).fork(requests[index], num_computed[index])
            for index, parent in enumerate(parents)
            if parent != index  # its own parent keeps its blocks
        ]
        for fork in forks:
            self._tables_of(fork.request).cut(0)
            self._tables[fork.request.request_id] = fork
        if self.offload is not None:
            for request in requests:  # offloaded blocks of its old text: nothing may restore them
                self.offload.drop(request.request_id)
        if self.states is not None:
            for index in self.states.reassign(requests, parents):
                self.release(requests[index])
                num_computed[index] = 0
        return num_computed

    # ---- release

    def rewind(self, request: Request, num_tokens: int) -> int:
        """Takes a request back to its first `num_tokens` positions, and gives back the blocks beyond them, the
        last one first. The blocks that the next token sees must not have been freed.

        Recurrent states are restored from the copy that `checkpoint` made, or, without a copy, from the
        beginning of the text: the positions from there on have to be computed again. The copy is dropped.

        Args:
            num_tokens: at most the computed tokens.

        Without the open keys of its last group, the request goes on at the beginning of that one.

        Returns:
            The positions that are still computed: `num_tokens`, if the model has no recurrent states and the format
            no open keys.
        """
        tables = self._tables_of(request)
        if self.states is not None:
            num_tokens = self.states.rewind(request, num_tokens)
        if self.open_keys is not None:
            num_tokens = self._if_visible(tables, self.open_keys.reachable(request, num_tokens))
            self.open_keys.rewind(request, num_tokens)
        tables.cut(num_tokens)
        if self.slots is not None and not tables.first.blocks:
            self.slots.release_slot(request)
        return num_tokens

    def take_slot(self, request: Request) -> int:
        """Takes the slot of open keys from a waiting request. It goes back to the beginning of a group, and gives back
        the blocks beyond.

        Returns:
            The positions that are still computed.
        """
        assert self.open_keys is not None
        tables = self._tables_of(request)
        num_tokens = self.open_keys.whole_groups(request.num_computed_tokens)
        num_tokens = self._if_visible(tables, num_tokens)
        tables.cut(num_tokens)
        self.open_keys.release_slot(request)
        return num_tokens

    def release_tail(self, request: Request, num_blocks: int) -> int:
        """Gives back blocks of a waiting request from the tail until `num_blocks` of them are free, or none is
        left. Gives back all of them if the request could not continue from the rest: blocks that the next token
        sees have left the window and were freed, or the model has recurrent states.

        The contents of blocks that become free are written to the swap file, as far as it has room.

        Returns:
            How many blocks have become free.
        """
        tables = self._tables_of(request)
        num_freed = 0
        if self.states is not None:
            self.states.swap_out(request)
        while tables.first.blocks and (
            num_freed < num_blocks
            or self.states is not None
            or not tables.goes_on_at(tables.num_positions)
        ):
            index = len(tables.first) - 1
            for table in reversed(tables.by_group):
                for block in table.cut(index):
                    self.block_pool.release([block])
                    if block.ref_count == 0:
                        num_freed += 1
                        self._swap_out(table, index, block)
        if self.slots is not None and not tables.first.blocks:
            self.slots.release_slot(request)
        return num_freed

    def release(self, request: Request) -> None:
        """Gives all blocks back, the tail first, so that the longest-lived prefix is evicted last."""
        self.rewind(request, 0)
        if self.offload is not None:
            self.offload.drop(request.request_id)

    def forget(self, request: Request) -> None:
        """Drops what is kept about a request that has ended."""
        self.release(request)
        tables = self._tables.pop(request.request_id)
        self._finder.forget(request)
        if self.states is not None:
            self.states.forget(tables.first)

    def reset_prefix_cache(self) -> None:
        """Clears the prefix index and drops all snapshots, because the contents of blocks are undefined."""
        self.block_pool.unseal_all()
        if self.states is not None:
            self.states.pool.drop_snapshots()

    def check_integrity(self) -> None:
        self.block_pool.check_integrity()
        all_tables = [table for tables in self._tables.values() for table in tables.by_group]
        owners = Counter(block for table in all_tables for block in table.held)
        assert all(count == block.ref_count for block, count in owners.items())
        assert len(owners) + self.block_pool.num_free_blocks == self.block_pool.num_blocks
        for table in all_tables:
            assert table.block_ids == tuple(block.block_id for block in table.blocks)
            assert all(block.block_id < 0 for block in table.blocks[: table.num_freed])
            num_computed = table.request.num_computed_tokens
            assert num_computed <= len(table) * self.block_size
            first_seen = self.needs.first_block(num_computed, table.window)
            assert not num_computed or table.num_freed <= first_seen
        holders = [tables.request for tables in self._tables.values() if tables.first.blocks]
        if self.states is not None:
            self.states.check_integrity([request.request_id for request in holders])
        if self.open_keys is not None:
            self.open_keys.check_integrity(holders)
        if self.offload is not None:
            self.offload.check_integrity(self._tables.keys())

    def check_writable(self, request: Request, num_tokens: int) -> None:
        """Asserts that a request has blocks of its own for the tokens up to `num_tokens` that are not computed yet."""
        assert self._tables_of(request).is_writable(request.num_computed_tokens, num_tokens)

    # ----

    def _tables_of(self, request: Request) -> RequestTables:
        tables = self._tables.get(request.request_id)
        if tables is None:
            tables = RequestTables(request, self.block_pool, self.needs, self.block_ops)
            self._tables[request.request_id] = tables
        return tables

    def _if_visible(self, tables: RequestTables, num_tokens: int) -> int:
        """0 if blocks that the token at a position sees have left the window and were freed."""
        return num_tokens if tables.goes_on_at(num_tokens) else 0

    def _num_missing(self, request: Request, num_needed: int) -> int:
        num_missing = max(0, num_needed - self.block_pool.num_free_blocks)
        if num_missing or self.states is None:
            return num_missing
        return int(self.states.lacks_slot(request))

    def _swap_out(self, table: BlockTable, index: int, block: Block) -> None:
        """Writes the contents of a block that has left a table to the swap file if the block was full, or if it
        was the last one and the recurrent states at its end are swapped out as well.

        Args:
            index: that the block had in the table.
        """
        if self.offload is None:
            return
        request, swapped = table.request, self.offload.swapped
        num_tokens = request.num_computed_tokens // self.block_size * self.block_size
        if swapped.num_state_tokens(request.request_id) is not None:
            num_tokens = request.num_computed_tokens
        if index * self.block_size < num_tokens:
            place = (table.group, index)
            op = swapped.swap_out(request.request_id, place, block.block_id)
            if op is not None:
                self.block_ops.append(op)
                if self.block_pool.log.active:
                    self.block_pool.log.add(("O", block.block_id, op.swap_slots[0], None))
