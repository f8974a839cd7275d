"""Work on the contents of blocks, as plain data: the control plane decides it, execution does it."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class CopyBlock:
    """Copy-on-write: the target becomes what the source is now."""

    source_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class SaveBlock:
    """Offer a full block to the prefix store."""

    block_id: int
    block_hash: bytes
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadBlock:
    """Fill a block with what the prefix store had."""

    block_id: int
    payload: object  # what `PrefixStore.find` gave


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


# Done in the order in which they were noted, all of them before the next forward: a block may be the
# source of a copy, be given to another request and be filled for that one, all in one step.
BlockOp: TypeAlias = CopyBlock | SaveBlock | LoadBlock | SwapOut | SwapIn
