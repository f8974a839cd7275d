"""A block of the KV cache, and the key by which the prefix index finds its contents."""

import json
from dataclasses import dataclass, field
from typing import NamedTuple


class CacheSalt(NamedTuple):
    """Only requests with equal salts share blocks.

    Attributes:
        own: that of the caller; None: it has given none.
        num_prompt_tokens: where every key depends on this number; None: keys do not.
    """

    own: str | None = None
    num_prompt_tokens: int | None = None

    @property
    def text(self) -> str:
        """Another one for each salt: what a caller gives begins with a quotation mark, and so looks like no number."""
        number = "" if self.num_prompt_tokens is None else str(self.num_prompt_tokens)
        return number + ("" if self.own is None else json.dumps(self.own))


NO_SALT = CacheSalt()


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Identity of a block's contents, which are a function of its tokens and of all before them.

    Attributes:
        block_hash: of the block and of everything before it, within the salt.
        parent_hash: the hash of the block before; for the first block, of the salt.
        index: of the block in its request's block table.
        token_ids: of the block.
        group: of the layers whose keys and values it holds.
        caller: whose request it was made for: no other caller is told that the same tokens are there under another
            salt.
        salt: of the request that it was made for.
    """

    block_hash: bytes
    parent_hash: bytes
    index: int
    token_ids: tuple[int, ...]
    group: int
    caller: str = field(compare=False)
    salt: CacheSalt = field(compare=False)


@dataclass(eq=False, slots=True)
class Block:
    """`block_size` slots of the KV cache. The pool alone writes its fields."""

    block_id: int
    ref_count: int = 0
    # Set once the block is full and sealed: its contents are then what the key says.
    key: BlockKey | None = None
    sealed_by: str | None = None  # request_id
