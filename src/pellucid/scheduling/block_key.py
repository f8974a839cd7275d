"""What a full block holds, by which it is found again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Identity of a block's contents, which are a function of its tokens and of all before them.

    Attributes:
        block_hash: of the block and of everything before it, within the salt.
        parent_hash: the hash of the block before; for the first block, of the salt.
        index: of the block in its sequence.
        token_ids: of the block.
    """

    block_hash: bytes
    parent_hash: bytes
    index: int
    token_ids: tuple[int, ...]
