"""Block operations: the work on block contents and recurrent states that has to be done before a step, as plain data.

The control plane lists them, execution carries them out.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pellucid.scheduling.block import BlockKey


@dataclass(frozen=True, slots=True)
class CopyBlock:
    """Copy-on-write: the target becomes what the source is now."""

    source_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class CopyState:
    """The recurrent states in the target become what those in the source are now: a fork gets its parent's states, a
    request those of a snapshot, and a snapshot or a spare slot those of a request."""

    source_slot: int
    target_slot: int


@dataclass(frozen=True, slots=True)
class SaveBlock:
    """Offer a full block to the prefix store."""

    block_id: int
    block_hash: bytes
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveState:
    """Offer a snapshot of recurrent states (at the end of a full block) to the prefix store."""

    state_slot: int
    block_hash: bytes
    token_ids: tuple[int, ...]


class KeyToRead(NamedTuple):
    """A block that the prefix store may have.

    Attributes:
        needed_until: the longest prefix, in blocks, that needs it. It has left the window of longer ones.
    """

    key: BlockKey
    needed_until: int


class SnapshotKey(NamedTuple):
    """A snapshot of recurrent states that the prefix store may have: of the block at whose end it was taken."""

    block_hash: bytes
    token_ids: tuple[int, ...]


class PrefixToRead(NamedTuple):
    """A prefix with which a request could begin if the prefix store has what it needs.

    Attributes:
        num_blocks: its length.
        num_keys: of the keys to read, the first ones are those of blocks of this prefix.
        snapshot: of the recurrent states at its end; None: the model has none.
    """

    num_blocks: int
    num_keys: int
    snapshot: SnapshotKey | None = None


@dataclass(frozen=True, slots=True)
class ReadBlocks:
    """Begin to read blocks from the prefix store: what the longest of `prefixes` needs whose blocks, and snapshot, are
    all there.

    What was read comes back by `Scheduler.finish_reading`, in a later step: for each of the prefix's keys the
    contents, or None if the prefix does not need them; then a `ReadSnapshot`, if the model has recurrent states.

    Attributes:
        keys: in order of the blocks.
        prefixes: the shortest first.
    """

    read_id: int
    keys: tuple[KeyToRead, ...]
    prefixes: tuple[PrefixToRead, ...]

    def needed(self, prefix: PrefixToRead) -> list[int]:
        """The indices of the keys that a prefix needs."""
        keys = self.keys[: prefix.num_keys]
        return [i for i, each in enumerate(keys) if each.needed_until >= prefix.num_blocks]


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """A snapshot of recurrent states that was read from the prefix store."""

    block_hash: bytes
    payload: object


@dataclass(frozen=True, slots=True)
class LoadBlock:
    """Fill a block with what was read from the prefix store."""

    block_id: int
    payload: object


@dataclass(frozen=True, slots=True)
class LoadState:
    """Fill a slot of recurrent states with what was read from the prefix store."""

    state_slot: int
    payload: object


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Keep a block's contents in a slot of the swap file."""

    block_id: int
    swap_slot: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Fill a block from a slot of the swap file, which is free after it."""

    swap_slot: int
    block_id: int


@dataclass(frozen=True, slots=True)
class SwapOutState:
    """Keep recurrent states in slots of the swap file, which hold as much as a block each."""

    state_slot: int
    swap_slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SwapInState:
    """Fill a slot of recurrent states from slots of the swap file, which are free after it."""

    swap_slots: tuple[int, ...]
    state_slot: int


# They run in the order in which they were listed, because a block may be the source of a copy, be given to
# another request and be filled for that one, all before one step.
BlockOp: TypeAlias = (
    CopyBlock
    | CopyState
    | SaveBlock
    | SaveState
    | ReadBlocks
    | LoadBlock
    | LoadState
    | SwapOut
    | SwapIn
    | SwapOutState
    | SwapInState
)


class BlockOps:
    """The operations that have to run before the next forward, in order."""

    def __init__(self) -> None:
        self._listed: list[BlockOp] = []
        self._error: Exception | None = None

    def __bool__(self) -> bool:
        """Whether any are listed."""
        return bool(self._listed)

    def add(self, op: BlockOp) -> None:
        self._listed.append(op)

    def fail(self, error: Exception) -> None:
        """Has the next `take` raise `error`, because operations that were taken did not all run."""
        self._error = error

    def take(self) -> tuple[BlockOp, ...]:
        """The operations listed since the last call, in order.

        Raises:
            Exception: the error of operations that were taken before: the contents of blocks are undefined.
        """
        error, self._error = self._error, None
        taken = tuple(self._listed)
        self._listed.clear()
        if error is not None:
            raise error
        return taken
