"""The prefix finder: finds the blocks that can follow those of a waiting request, and says why it finds no more."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pellucid.facts.formulas import BlockNeeds
from pellucid.scheduling.block import Block
from pellucid.scheduling.block_ops import KeyToRead, PrefixToRead, SlotKind, SnapshotKey
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_table import BlockTable, Place
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.prefix_index import MissReason, PrefixMiss
from pellucid.scheduling.recurrent_states import RecurrentStates
from pellucid.scheduling.request import Request
from pellucid.scheduling.request_tables import RequestTables

IsThere: TypeAlias = Callable[[BlockTable, int], bool]  # of the index of a block


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
    """Blocks in the prefix index, the swap file and the prefix store that can follow those of a request.

    Attributes:
        num_tokens: positions with computed keys and values after them.
        blocks: for each group, without those that have left the window: a sealed block, or None for an
            offloaded one.
    """

    num_tokens: int
    blocks: Sequence[Sequence[Block | None]]


class BlocksToRead(NamedTuple):
    """What the prefix store may have of a request's prefix.

    Attributes:
        keys: of blocks that are neither sealed nor in the swap file.
        prefixes: those that may be there, the shortest first.
        num_blocks: the most blocks that one of them needs.
    """

    keys: list[KeyToRead]
    prefixes: list[PrefixToRead]
    num_blocks: int


class PrefixFinder:
    """Finds the longest prefix of a request that needs no computation. It takes no blocks.

    A prefix needs in every group the blocks that the next token sees and, if the model has recurrent states, the
    states at its end.

    Args:
        block_pool: has the prefix index.
        offload: what is in the swap file, and what was read from the prefix store.
        states: has the snapshots of recurrent states.
        needs: says which blocks a token sees.
        is_enabled: whether a request may find sealed blocks.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        offload: Offload,
        states: RecurrentStates,
        needs: BlockNeeds,
        is_enabled: bool,
    ) -> None:
        self._pool = block_pool
        self._index = block_pool.index
        self._offload = offload
        self._states = states
        self._needs = needs
        self._is_enabled = is_enabled
        # By request_id: the last result of `find`, and the version and length for which it holds.
        self._found: dict[str, tuple[tuple[int, int], FoundPrefix]] = {}

    def num_matchable_blocks(self, request: Request) -> int:
        """Full blocks of a request that do not hold its last token."""
        # Logits of every prompt position are needed for prompt_logprobs, so all are computed.
        if not self._is_enabled or request.params.prompt_logprobs is not None:
            return 0
        return (request.num_tokens - 1) // self._needs.block_size

    def find(self, tables: RequestTables) -> FoundPrefix:
        """The sealed blocks that can follow those of a waiting request. The look-up is repeated only after blocks
        have changed owners."""
        groups, first = tables.by_group, len(tables.first)
        if tables.ends_within_a_block:
            return FoundPrefix(first, first, ((),) * len(groups))
        version = self._pool.version + self._states.pool.version, first
        request_id = tables.request.request_id
        found_at, found = self._found.get(request_id, (None, None))
        if found is not None and found_at == version:
            return found
        blocks: list[list[Block | None]] = [[] for _ in groups]

        def is_sealed(table: BlockTable, index: int) -> bool:
            block = self._index.find(table.key(index))
            blocks[table.group].append(block)
            return block is not None

        max_tokens = self.num_matchable_blocks(tables.request) * self._needs.block_size
        end, num_sealed = self._deepest(groups, max_tokens, is_sealed, self._has_snapshot)
        num_tokens = end * self._needs.block_size
        found = FoundPrefix(
            end,
            num_sealed,
            tuple(
                [block for block in seen if block is not None]  # none is
                for seen in self._seen(groups, blocks, num_tokens, end)
            ),
        )
        self._found[request_id] = version, found
        return found

    def forget(self, request: Request) -> None:
        """Drops the last result of `find`: the request has taken the blocks, has others, or has ended."""
        self._found.pop(request.request_id, None)

    def find_extension(self, tables: RequestTables) -> Extension | None:
        """The sealed and offloaded blocks that can follow those of a request: up to where its recurrent states
        were swapped out, if all blocks are there; otherwise up to the last full block (with a snapshot). None:
        there are none."""
        num_tokens = self._offload.swapped.num_state_tokens(tables.request.request_id)
        if num_tokens is not None and num_tokens < tables.request.num_tokens:
            extension = self._extension(tables, num_tokens, has_states=True)
            if extension is not None:
                return extension
        block_size = self._needs.block_size
        max_tokens = (tables.request.num_tokens - 1) // block_size * block_size
        return self._extension(tables, max_tokens, has_states=False)

    def blocks_to_read(self, tables: RequestTables, max_blocks: int) -> BlocksToRead:
        """What the prefix store may have of the blocks behind those that `find` has found.

        Args:
            max_blocks: to read, snapshots included.
        """
        keys: dict[Place, KeyToRead] = {}
        prefixes: list[PrefixToRead] = []
        num_blocks = 0
        waiting: list[deque[int]] = [
            deque() for _ in tables.by_group
        ]  # of each group, blocks that are still in the window
        longest = self.num_matchable_blocks(tables.request)
        for index in range(self.find(tables).num_blocks, longest):
            if num_blocks + self.least_to_read > max_blocks:
                break
            length = index + 1
            for table, indices in zip(tables.by_group, waiting, strict=True):
                key, place = table.key(index), (table.group, index)
                if key not in self._index and not self._offload.swapped.has_block(
                    tables.request.request_id, place
                ):
                    keys[place] = KeyToRead(key, longest)
                    indices.append(index)
                first = self._needs.first_block(length * self._needs.block_size, table.window)
                while indices and indices[0] < first:
                    gone = table.group, indices.popleft()
                    keys[gone] = keys[gone]._replace(needed_until=index)
            num_blocks = max(num_blocks, sum(map(len, waiting)))
            snapshot = None
            if self._states.exist:
                last = tables.first.key(index)
                snapshot = SnapshotKey(last.block_hash, last.token_ids)
            prefixes.append(PrefixToRead(length, len(keys), snapshot))
        return BlocksToRead(list(keys.values()), prefixes, num_blocks)

    @property
    def least_to_read(self) -> int:
        """Blocks of memory that a read takes at least: a block of each group, and a snapshot."""
        return len(self._needs.windows) + self._offload.blocks_per_state

    def explain_miss(self, tables: RequestTables, num_tokens: int) -> PrefixMiss | None:
        """Why only `num_tokens` of a request were found; None if these are all that could be found."""
        request = tables.request
        index, rest = divmod(num_tokens, self._needs.block_size)
        if num_tokens == request.num_tokens - 1:
            return None
        if not self._is_enabled or request.params.prompt_logprobs is not None:
            return PrefixMiss(MissReason.DISABLED, num_tokens)
        # A request that kept a block that is not full continues there.
        if rest or index >= self.num_matchable_blocks(request):
            return PrefixMiss(MissReason.PARTIAL_BLOCK, num_tokens)
        seen_from = (index + 1) * self._needs.block_size
        keys = [
            table.key(each)
            for table in tables.by_group
            for each in range(self._needs.first_block(seen_from, table.window), index + 1)
        ]
        missing = next((key for key in keys if key not in self._index), None)
        if missing is None and self._states.exist:
            diverges_at = self._states.diverges_at(request)
            return PrefixMiss(MissReason.RECURRENT, num_tokens, snapshot_at_token=diverges_at)
        return self._index.explain_miss(missing or keys[-1], num_tokens)

    def _extension(
        self, tables: RequestTables, max_tokens: int, has_states: bool
    ) -> Extension | None:
        """The blocks that can follow a request's own, up to `max_tokens`.

        Args:
            has_states: the swap file has the recurrent states after exactly `max_tokens`: only an extension up
                to there can use them.
        """
        groups, request_id = tables.by_group, tables.request.request_id
        num_matchable = self.num_matchable_blocks(tables.request)
        sealed: list[list[Block | None]] = [[] for _ in groups]

        def is_there(table: BlockTable, index: int) -> bool:
            place = table.group, index
            if index >= num_matchable:
                sealed[table.group].append(None)
                return self._offload.swapped.has_block(request_id, place)
            key = table.key(index)
            block = self._index.find(key)
            sealed[table.group].append(block)
            if block is not None or self._offload.swapped.has_block(request_id, place):
                return True
            return self._offload.reads.has_loaded(request_id, SlotKind.BLOCK, key.block_hash)

        def has_snapshot(block_hash: bytes) -> bool:
            is_loaded = self._offload.reads.has_loaded(request_id, SlotKind.STATES, block_hash)
            return is_loaded or self._has_snapshot(block_hash)

        end, num_there = self._deepest(groups, max_tokens, is_there, has_snapshot)
        if has_states:
            end = num_there if num_there == self._num_blocks_for(max_tokens) else 0
        num_tokens = min(end * self._needs.block_size, max_tokens)
        if end <= len(tables.first):
            return None
        return Extension(num_tokens, self._seen(groups, sealed, num_tokens, end))

    def _deepest(
        self,
        groups: Sequence[BlockTable],
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
        block_size = self._needs.block_size
        first = deepest = num_there = len(groups[0])
        runs = [first] * len(
            groups
        )  # blocks in a row, so far; nobody asks for those that were freed
        for index in range(first, self._num_blocks_for(max_tokens)):
            for table in groups:
                if is_there(table, index):
                    runs[table.group] += 1
                elif table.window is None:
                    return deepest, num_there  # no later token can do without this block
                else:
                    runs[table.group] = 0
            end = index + 1
            position = min(end * block_size, max_tokens)
            firsts = [self._needs.first_block(position, table.window) for table in groups]
            if all(runs[table.group] >= end - firsts[table.group] for table in groups):
                num_there = end
                is_full = position == end * block_size
                if not self._states.exist or (
                    is_full and has_snapshot(groups[0].key(index).block_hash)
                ):
                    deepest = end
        return deepest, num_there

    def _seen(
        self,
        groups: Sequence[BlockTable],
        blocks: Sequence[Sequence[Block | None]],
        num_tokens: int,
        end: int,
    ) -> list[Sequence[Block | None]]:
        """For each group, those of the blocks behind its table that the token at position `num_tokens` sees.

        Args:
            blocks: for each group, from the end of its table on.
            end: the length of each table with these blocks.
        """
        first = len(groups[0])
        firsts = [self._needs.first_block(num_tokens, table.window) for table in groups]
        return [
            group[max(0, seen_from - first) : end - first]
            for group, seen_from in zip(blocks, firsts, strict=True)
        ]

    def _has_snapshot(self, block_hash: bytes) -> bool:
        return block_hash in self._states.pool

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._needs.block_size)
