"""Block operations: the work on contents of blocks and on recurrent states that has to be done before a step, as plain
data.

The control plane lists them, execution carries them out.
"""

from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from pellucid.scheduling.block import BlockKey


class SlotKind(Enum):
    """What a slot of the KV cache holds."""

    BLOCK = "block"  # keys and values of `block_size` positions
    STATES = "states"  # recurrent states of one request or one snapshot


class Slot(NamedTuple):
    """A place in the KV cache: a block, or a slot of recurrent states.

    Attributes:
        id: the block id, or the number of the slot of states.
    """

    kind: SlotKind
    id: int


class Copy(Struct, frozen=True):
    """The target becomes what the source is now: copy-on-write of a block; a fork gets the states of its parent, a
    request those of a snapshot, and a snapshot or a spare slot those of a request."""

    source: Slot
    target: Slot


class Save(Struct, frozen=True):
    """Offer a full block, or a snapshot of recurrent states at its end, to the prefix store."""

    slot: Slot
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


class Read(Struct, frozen=True):
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


class ReadSnapshot(Struct, frozen=True):
    """A snapshot of recurrent states that was read from the prefix store."""

    block_hash: bytes
    payload: object


class Load(Struct, frozen=True):
    """Fill a slot with what was read from the prefix store."""

    slot: Slot
    payload: object


class SwapOut(Struct, frozen=True):
    """Keep what a slot holds in slots of the swap file. Each of these has the size of a block: a block takes one of
    them, states as many as their bytes fill."""

    slot: Slot
    swap_slots: tuple[int, ...]


class SwapIn(Struct, frozen=True):
    """Fill a slot from slots of the swap file, which are free after it."""

    swap_slots: tuple[int, ...]
    slot: Slot


# They run in the order in which they were listed, because a slot may be the source of a copy, be given to
# another request and be filled for that one, all before one step.
BlockOp: TypeAlias = Copy | Save | Read | Load | SwapOut | SwapIn
