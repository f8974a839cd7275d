"""A block of the KV cache, and the key by which the prefix index finds its contents."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field


def root_hash(salt: bytes, group: int) -> bytes:
    """The parent hash of the first block of a request.

    No salt gives one group the hash of another: their hash functions differ.

    Args:
        salt: of the request.
        group: of layers.
    """
    if group == 0:
        return hashlib.sha256(salt).digest()
    person = f"group {group}".encode()
    return hashlib.blake2b(salt, digest_size=32, person=person).digest()


BYTES_PER_TOKEN = 8  # as they are hashed


def hashed_bytes(token_ids: Sequence[int]) -> bytes:
    """Tokens as they are hashed."""
    return array("q", token_ids).tobytes()


def hash_of_block(parent_hash: bytes, tokens: bytes) -> bytes:
    """The hash of a block and of everything before it.

    Args:
        tokens: `hashed_bytes` of the block.
    """
    return hashlib.sha256(parent_hash + tokens).digest()


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
    group: int = 0
    caller: str = field(default="", compare=False)
    salt: bytes = field(default=b"", compare=False)


class Block:
    """`block_size` slots of the KV cache. The pool alone writes its fields."""

    __slots__ = ("block_id", "key", "ref_count", "sealed_by")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        # Set once the block is full and sealed: its contents are then what the key says.
        self.key: BlockKey | None = None
        self.sealed_by: str | None = None  # request_id
