"""The prefix finder: finds the blocks that can follow those of a waiting request, and says why it finds no more."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pellucid.facts.formulas import BlockNeeds
from pellucid.scheduling.block import Block
from pellucid.scheduling.block_ops import KeyToRead, PrefixToRead, SlotKind, SnapshotKey
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.block_tables import BlockTable, Place, RequestTables
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.prefix_index import MissReason, PrefixMiss
from pellucid.scheduling.recurrent_states import RecurrentStates
from pellucid.scheduling.request import Request
from pellucid.scheduling.state_pool import StatePool


class Swapped(NamedTuple):
    """A block of the request in the swap file."""

    place: Place


class Loaded(NamedTuple):
    """A block that the prefix store has read for the request."""

    block_hash: bytes


Sealed: TypeAlias = Block  # a block in the prefix index
Found: TypeAlias = Sealed | Swapped | Loaded
Rows: TypeAlias = list[list[Found | None]]  # by index behind a request's blocks, and by group
ANYWHERE = Sealed, Swapped, Loaded


class Extension(NamedTuple):
    """Sealed and offloaded blocks that can follow those of a request.

    Attributes:
        num_tokens: positions with computed keys and values after them.
        blocks: for each group, without those that have left the window.
    """

    num_tokens: int
    blocks: Sequence[Sequence[Found]]


class FoundPrefix(NamedTuple):
    """What can follow the blocks of a waiting request. Finding it takes no block.

    Attributes:
        num_tokens: positions with computed keys and values after the sealed blocks.
        sealed: for each group, the sealed blocks that come first, without those that have left the window.
        restored: the blocks behind them, if some of these are offloaded; None: there are none.
        diverges_at: the position after the last sealed block; beyond `num_tokens` if there is no snapshot of recurrent
            states at this position.
        version: of the finder. With another version, this may no longer be true.
    """

    num_tokens: int
    sealed: Sequence[Sequence[Sealed]]
    restored: Extension | None
    diverges_at: int
    version: tuple[object, ...]


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


@dataclass(eq=False)
class PrefixFinder:
    """Finds the longest prefix of a request that needs no computation. It takes no blocks.

    A prefix needs in every group the blocks that the next token sees and, if the model has recurrent states, the
    states at its end.

    Args:
        pool: has the prefix index.
        offload: what is in the swap file, and what was read from the prefix store; None: there is neither.
        states: has the snapshots of recurrent states; None: the model has none.
        needs: says which blocks a token sees.
        is_enabled: whether a request may find sealed blocks.
    """

    _pool: BlockPool
    _offload: Offload | None
    _states: RecurrentStates | None
    _needs: BlockNeeds
    _is_enabled: bool

    def __post_init__(self) -> None:
        self._index = self._pool.index
        self._found: dict[str, FoundPrefix] = {}  # by request_id

    @property
    def version(self) -> tuple[object, ...]:
        """Changes whenever blocks or snapshots come or go."""
        states = self._states
        return self._pool.version, None if states is None else states.pool.version

    def num_matchable_blocks(self, request: Request) -> int:
        """Full blocks of a request that do not hold its last token."""
        # Logits of every prompt position are needed for prompt_logprobs, so all are computed.
        if not self._is_enabled or request.params.prompt_logprobs is not None:
            return 0
        return (request.num_tokens - 1) // self._needs.block_size

    def find(self, tables: RequestTables) -> FoundPrefix:
        """What can follow the blocks of a waiting request. The look-up is repeated only after blocks or snapshots have
        come or gone, and if something of the request is offloaded."""
        name = tables.request.request_id
        is_open = tables.ends_within_a_block
        if not is_open and self._offload is not None and self._offload.has(name):
            return self._find(tables, self._offload)
        if is_open or len(tables.first) >= self.num_matchable_blocks(tables.request):
            num_tokens, nothing = tables.request.num_computed_tokens, ((),) * len(tables.by_group)
            return FoundPrefix(num_tokens, nothing, None, num_tokens, self.version)
        found = self._found.get(name)
        if found is None or found.version != self.version:
            found = self._found[name] = self._find(tables, None)
        return found

    def forget(self, request: Request) -> None:
        """Drops the last result of `find`: the request has taken the blocks, or has ended."""
        self._found.pop(request.request_id, None)

    def blocks_to_read(self, tables: RequestTables, first: int, max_blocks: int) -> BlocksToRead:
        """What the prefix store may have of a request's blocks from index `first` on.

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
        for index in range(first, longest):
            if num_blocks + self.least_to_read > max_blocks:
                break
            length = index + 1
            for table, indices in zip(tables.by_group, waiting, strict=True):
                if self._look_up(table, index, longest, self._offload) is None:
                    keys[table.group, index] = KeyToRead(table.key(index), longest)
                    indices.append(index)
                seen_from = self._needs.first_block(length * self._needs.block_size, table.window)
                while indices and indices[0] < seen_from:
                    gone = table.group, indices.popleft()
                    keys[gone] = keys[gone]._replace(needed_until=index)
            num_blocks = max(num_blocks, sum(map(len, waiting)))
            snapshot = None
            if self._states is not None:
                last = tables.first.key(index)
                snapshot = SnapshotKey(last.block_hash, last.token_ids)
            prefixes.append(PrefixToRead(length, len(keys), snapshot))
        return BlocksToRead(list(keys.values()), prefixes, num_blocks)

    @property
    def least_to_read(self) -> int:
        """Blocks of memory that a read takes at least: a block of each group, and a snapshot."""
        assert self._offload is not None  # or there is nothing to read from
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
        if missing is None and self._states is not None:
            diverges_at = self._states.diverges_at(request)
            return PrefixMiss(MissReason.RECURRENT, num_tokens, snapshot_at_token=diverges_at)
        return self._index.explain_miss(missing or keys[-1], num_tokens)

    def _find(self, tables: RequestTables, offload: Offload | None) -> FoundPrefix:
        """`find`. `offload`: where something of the request is; None: nothing is."""
        request, block_size = tables.request, self._needs.block_size
        max_tokens = (request.num_tokens - 1) // block_size * block_size
        # Where the recurrent states of the request were swapped out: they need no snapshot.
        states_at = (
            None if offload is None else offload.swapped.num_state_tokens(request.request_id)
        )
        assert states_at is None or states_at < request.num_tokens
        last = self.num_matchable_blocks(request)
        if offload is not None:
            last = self._needs.num_blocks(max(max_tokens, states_at or 0))
        rows = self._look_up_all(tables, last, offload)
        end, num_sealed = self._reach(tables, rows, max_tokens, (Sealed,))
        seen = self._seen(tables, rows, len(tables.first), end * block_size)
        return FoundPrefix(
            end * block_size,
            # All of them are.
            [[found for found in blocks if isinstance(found, Sealed)] for blocks in seen],
            None if offload is None else self._restored(tables, rows, end, max_tokens, states_at),
            num_sealed * block_size,
            self.version,
        )

    def _look_up_all(self, tables: RequestTables, last: int, offload: Offload | None) -> Rows:
        """What is there of each block behind those of a request and before index `last`, up to the first one that no
        later token can do without."""
        num_matchable = self.num_matchable_blocks(tables.request)
        rows: Rows = []
        for index in range(len(tables.first), last):
            row = [self._look_up(table, index, num_matchable, offload) for table in tables.by_group]
            rows.append(row)
            if None in row and tables.by_group[row.index(None)].window is None:
                break
        return rows

    def _look_up(
        self, table: BlockTable, index: int, num_matchable: int, offload: Offload | None
    ) -> Found | None:
        """Where the block with an index is that can be appended to a table; None: nowhere."""
        key = table.key(index) if index < num_matchable else None
        if key is not None and (block := self._index.find(key)) is not None:
            return block
        if offload is None:
            return None
        request_id, place = table.request.request_id, (table.group, index)
        if offload.swapped.has_block(request_id, place):
            return Swapped(place)
        if key is not None and offload.reads.has_loaded(request_id, SlotKind.BLOCK, key.block_hash):
            return Loaded(key.block_hash)
        return None

    def _restored(
        self,
        tables: RequestTables,
        rows: Rows,
        start: int,
        max_tokens: int,
        states_at: int | None,
    ) -> Extension | None:
        """The sealed and offloaded blocks from index `start` on: up to where recurrent states were swapped out, if all
        blocks are there; otherwise up to the last full block (with a snapshot)."""
        end, num_tokens = 0, 0
        if states_at is not None:
            _, num_there = self._reach(tables, rows, states_at, ANYWHERE)
            if num_there == self._needs.num_blocks(states_at):
                end, num_tokens = num_there, states_at
        if end <= start:
            end, _ = self._reach(tables, rows, max_tokens, ANYWHERE)
            num_tokens = end * self._needs.block_size
        if end <= start:
            return None
        return Extension(num_tokens, self._seen(tables, rows, start, num_tokens))

    def _reach(
        self,
        tables: RequestTables,
        rows: Rows,
        max_tokens: int,
        places: tuple[type[Found], ...],
    ) -> tuple[int, int]:
        """The longest prefix, in blocks, for which every group has the blocks that the next token sees.

        Args:
            max_tokens: the prefix has at most these tokens.
            places: where the blocks may be.

        Returns:
            Two lengths: of the longest prefix that ends at a snapshot (if the model has recurrent states), and
            of the longest prefix with or without a snapshot.
        """
        groups, block_size = tables.by_group, self._needs.block_size
        first = deepest = num_there = len(tables.first)
        last = min(first + len(rows), self._needs.num_blocks(max_tokens))
        windowed = [table for table in groups if table.window is not None]
        # Blocks in a row, so far; nobody asks for those that were freed.
        runs = [first] * len(groups)
        for end in range(first + 1, last + 1):
            for group, found in enumerate(rows[end - first - 1]):
                if isinstance(found, places):
                    runs[group] += 1
                elif groups[group].window is None:
                    return deepest, num_there  # no later token can do without this block
                else:
                    runs[group] = 0
            position = min(end * block_size, max_tokens)
            if windowed and not all(
                runs[table.group] >= end - self._needs.first_block(position, table.window)
                for table in windowed
            ):
                continue
            num_there = end
            if self._states is None:
                deepest = end
            elif position == end * block_size:  # snapshots are of full blocks
                may_be_loaded = Loaded in places
                if self._has_snapshot(self._states.pool, tables.first, end - 1, may_be_loaded):
                    deepest = end
        return deepest, num_there

    def _seen(
        self, tables: RequestTables, rows: Rows, start: int, num_tokens: int
    ) -> list[list[Found]]:
        """For each group, those of the blocks from index `start` to position `num_tokens` that the token there
        sees."""
        first, end = len(tables.first), self._needs.num_blocks(num_tokens)
        seen_from = [self._needs.first_block(num_tokens, table.window) for table in tables.by_group]
        return [
            [
                found
                for row in rows[max(start, seen) - first : end - first]
                if (found := row[group]) is not None  # none is
            ]
            for group, seen in enumerate(seen_from)
        ]

    def _has_snapshot(
        self, snapshots: StatePool, table: BlockTable, index: int, may_be_loaded: bool
    ) -> bool:
        """Whether there is a snapshot of recurrent states at the end of block `index`."""
        block_hash = table.key(index).block_hash
        if block_hash in snapshots:
            return True
        request_id, reads = table.request.request_id, self._offload and self._offload.reads
        return bool(
            may_be_loaded and reads and reads.has_loaded(request_id, SlotKind.STATES, block_hash)
        )
