"""The physical blocks of the KV cache: who is free, who is shared, who can be found again."""

from collections import OrderedDict
from collections.abc import Iterable


class Block:
    """`block_size` slots of the KV cache. The pool alone writes its fields."""

    __slots__ = ("block_hash", "block_id", "ref_count", "token_ids")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        # Set once the block is full and sealed: its contents are then a function of these tokens and
        # of all before them, which the hash covers.
        self.block_hash: bytes | None = None
        self.token_ids: tuple[int, ...] = ()


class BlockPool:
    """Owns every block. A free block that was sealed stays findable until it is taken (LRU).

    Invariant: a block is in `_free` exactly when its ref_count is 0, and in `_sealed` exactly when
    it has a hash.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        # Ordered from least to most recently released. Not a deque: a hit takes from the middle.
        self._free = OrderedDict((block.block_id, block) for block in self._blocks)
        self._sealed: dict[bytes, Block] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[Block]:
        """Takes blocks, least recently used first; what they held can no longer be found."""
        assert num_blocks <= len(self._free)
        taken = [self._free.popitem(last=False)[1] for _ in range(num_blocks)]
        for block in taken:
            self.unseal(block)
            block.ref_count = 1
        return taken

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> Block | None:
        """The sealed block with this hash, if its tokens are the same too."""
        block = self._sealed.get(block_hash)
        return block if block is not None and block.token_ids == token_ids else None

    def share(self, block: Block) -> None:
        """One more owner."""
        if block.ref_count == 0:
            del self._free[block.block_id]
        block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """One owner less each; in the order given they become the last to be taken."""
        for block in blocks:
            assert block.ref_count > 0
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free[block.block_id] = block

    def seal(self, block: Block, block_hash: bytes, token_ids: tuple[int, ...]) -> bool:
        """Makes a full block findable, unless it is, or another one with equal contents."""
        if block.block_hash is not None or block_hash in self._sealed:
            return False
        block.block_hash = block_hash
        block.token_ids = token_ids
        self._sealed[block_hash] = block
        return True

    def unseal(self, block: Block) -> None:
        """Makes a block unfindable, for its contents will change."""
        if block.block_hash is not None:
            del self._sealed[block.block_hash]
            block.block_hash = None
            block.token_ids = ()

    def unseal_all(self) -> None:
        """Makes every block unfindable, for nobody knows what they hold."""
        for block in tuple(self._sealed.values()):
            self.unseal(block)

    def check_integrity(self) -> None:
        for block in self._blocks:
            assert block.ref_count >= 0
            assert (block.ref_count == 0) == (block.block_id in self._free)
            if block.block_hash is not None:
                assert self._sealed[block.block_hash] is block
        assert len(self._sealed) == sum(block.block_hash is not None for block in self._blocks)
