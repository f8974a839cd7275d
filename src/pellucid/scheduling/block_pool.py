"""The block pool: which physical blocks of the KV cache are free, owned, shared, or in the prefix index."""

from collections import OrderedDict
from collections.abc import Iterable

from pellucid.observing.events import BlockOpRow
from pellucid.scheduling.block import Block, BlockKey
from pellucid.scheduling.op_log import OpLog
from pellucid.scheduling.prefix_index import PrefixIndex


class BlockPool:
    """Owns every block. A sealed block without owners stays in the index until `allocate` takes it (LRU).

    A block becomes an object when it is taken for the first time: a machine may have room for a million of them.

    Invariant: such a block is in one of `_empty` and `_kept` exactly when its ref_count is 0, and in the index
    exactly when it has a key.

    Attributes:
        index: the prefix index of the sealed blocks.
        log: records what happens to blocks.
        version: another object whenever blocks were given back or the index has changed.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.index = PrefixIndex(num_blocks)
        self.log = OpLog[BlockOpRow]()
        self.version = object()
        self._blocks: list[Block] = []  # by id; those behind them were never taken
        # `allocate` takes the latest of these, which were released without a key,
        self._empty: dict[int, Block] = {}
        # then blocks that were never taken, then those that were released with a key, the earliest first. Not a
        # deque: a hit takes from the middle.
        self._kept = OrderedDict[int, Block]()
        self._num_free_sealed = 0

    @property
    def num_free_blocks(self) -> int:
        num_new = self.num_blocks - len(self._blocks)
        return len(self._empty) + num_new + len(self._kept)

    @property
    def num_used_blocks(self) -> int:
        """Blocks with an owner."""
        return self.num_blocks - self.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that are in the prefix index."""
        return self._num_free_sealed

    def allocate(self, num_blocks: int) -> list[Block]:
        """Takes free blocks, least recently used first, and removes them from the index."""
        assert num_blocks <= self.num_free_blocks
        taken = [self._take() for _ in range(num_blocks)]
        for block in taken:
            if block.key is not None:
                self.unseal(block)
            block.ref_count = 1
        return taken

    def share(self, block: Block) -> None:
        """Adds an owner to a block."""
        if block.ref_count == 0:
            del (self._kept if block.block_id in self._kept else self._empty)[block.block_id]
            self._num_free_sealed -= block.key is not None
        block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """Removes an owner from each block. Blocks without owners become free, in the order given.

        `allocate` takes free blocks that are not in the index first.
        """
        self.version = object()
        for block in blocks:
            assert block.ref_count > 0
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.key is None:
                    self._empty[block.block_id] = block
                else:
                    self._kept[block.block_id] = block
                    self._num_free_sealed += 1
            if self.log.active:
                self.log.add(("R", block.block_id, block.ref_count, None))

    def seal(self, block: Block, key: BlockKey, request_id: str) -> bool:
        """Publishes a full block to the index, unless this block or one with equal contents is already there.

        Args:
            block: with an owner.
            key: of what it holds.
            request_id: whose tokens these are.

        Returns:
            Whether the block was published now.
        """
        assert block.ref_count > 0
        if key in self.index:
            return False
        self.version = object()
        block.key = key
        block.sealed_by = request_id
        self.index.add(key, block)
        if self.log.active:
            self.log.add(("H", block.block_id, key.block_hash.hex()[:16], None))
        return True

    def unseal(self, block: Block) -> None:
        """Removes a block from the index, because its contents will change."""
        if block.key is not None:
            self.version = object()
            self.index.remove(block.key)
            self._num_free_sealed -= block.ref_count == 0
            block.key = None
            block.sealed_by = None
            if self.log.active:
                self.log.add(("E", block.block_id, None, None))

    def unseal_all(self) -> None:
        """Clears the index, because the contents of blocks are undefined."""
        for block in self._blocks:
            self.unseal(block)

    def block(self, block_id: int) -> Block:
        """The block with an id below `num_blocks`."""
        return self._blocks[block_id] if block_id < len(self._blocks) else Block(block_id)

    def blocks_in_use(self) -> list[Block]:
        """The blocks with an owner or with contents that can be found."""
        return [block for block in self._blocks if block.ref_count or block.key is not None]

    def check_integrity(self) -> None:
        self.index.check_integrity()
        for block in self._blocks:
            assert block.ref_count >= 0
            is_free = (block.block_id in self._empty) + (block.block_id in self._kept)
            assert (block.ref_count == 0) == is_free
            assert block.key is None or self.index.find(block.key) is block
        assert len(self.index) == sum(block.key is not None for block in self._blocks)
        cached = sum(block.key is not None for block in self._kept.values())
        assert cached == self._num_free_sealed
        assert all(block.key is None for block in self._empty.values())

    def _take(self) -> Block:
        if self._empty:
            return self._empty.popitem()[1]
        if len(self._blocks) < self.num_blocks:
            self._blocks.append(Block(len(self._blocks)))
            return self._blocks[-1]
        return self._kept.popitem(last=False)[1]
