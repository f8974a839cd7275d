"""The physical blocks of the KV cache: who is free, who is shared, who can be found again."""

from collections import OrderedDict
from collections.abc import Iterable

from pellucid.scheduling.block import Block
from pellucid.scheduling.block_key import BlockKey
from pellucid.scheduling.block_log import BlockLog
from pellucid.scheduling.prefix_index import PrefixIndex


class BlockPool:
    """Owns every block. A free block that was sealed stays findable until it is taken (LRU).

    Invariant: a block is in `_free` exactly when its ref_count is 0, and in the index exactly when
    it has a key.

    Attributes:
        index: of the sealed blocks.
        log: what happens to blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.index = PrefixIndex(num_blocks)
        self.log = BlockLog()
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        # In the order in which they are taken: those without contents worth keeping, then from least
        # to most recently released. Not a deque: a hit takes from the middle.
        self._free = OrderedDict((block.block_id, block) for block in self._blocks)
        self._num_free_sealed = 0

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that can still be found."""
        return self._num_free_sealed

    def allocate(self, num_blocks: int) -> list[Block]:
        """Takes blocks, least recently used first; what they held can no longer be found."""
        assert num_blocks <= len(self._free)
        taken = [self._free.popitem(last=False)[1] for _ in range(num_blocks)]
        for block in taken:
            if block.key is not None:
                self.unseal(block)
                self.log.add("E", block.block_id)
            block.ref_count = 1
        return taken

    def share(self, block: Block) -> None:
        """One more owner."""
        if block.ref_count == 0:
            del self._free[block.block_id]
            self._num_free_sealed -= block.key is not None
        block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """One owner less each; in the order given they become the last to be taken.

        Those that cannot be found again become the first.
        """
        for block in blocks:
            assert block.ref_count > 0
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free[block.block_id] = block
                if block.key is None:
                    self._free.move_to_end(block.block_id, last=False)
                else:
                    self._num_free_sealed += 1
            self.log.add("R", block.block_id, block.ref_count)

    def seal(self, block: Block, key: BlockKey, request_id: str) -> bool:
        """Makes a full block findable, unless it is, or another one with equal contents.

        Args:
            block: with an owner.
            key: of what it holds.
            request_id: whose tokens these are.
        """
        assert block.ref_count > 0
        if block.key is not None or key in self.index:
            return False
        block.key = key
        block.sealed_by = request_id
        self.index.add(key, block)
        self.log.add("H", block.block_id, key.block_hash.hex()[:16])
        return True

    def unseal(self, block: Block) -> None:
        """Makes a block unfindable, for its contents will change."""
        if block.key is not None:
            self.index.remove(block.key)
            self._num_free_sealed -= block.ref_count == 0
            block.key = None
            block.sealed_by = None

    def unseal_all(self) -> None:
        """Makes every block unfindable, for nobody knows what they hold."""
        for block in self._blocks:
            self.unseal(block)

    def check_integrity(self) -> None:
        self.index.check_integrity()
        for block in self._blocks:
            assert block.ref_count >= 0
            assert (block.ref_count == 0) == (block.block_id in self._free)
            assert block.key is None or self.index.find(block.key) is block
        assert len(self.index) == sum(block.key is not None for block in self._blocks)
        cached = sum(block.key is not None for block in self._free.values())
        assert cached == self._num_free_sealed
