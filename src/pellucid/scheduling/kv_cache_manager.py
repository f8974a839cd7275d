"""Which blocks belong to which request: the logical side of the paged KV cache."""

import hashlib
from array import array

from pellucid.scheduling.block_pool import Block, BlockPool
from pellucid.scheduling.request import Request


class KVCacheManager:
    """Owns the block tables. A request's tokens p sit in slot p % block_size of block p // block_size.

    Args:
        block_pool: where blocks come from.
        block_size: tokens per block.
        enable_prefix_caching: seal full blocks and find them again for other requests.
    """

    def __init__(
        self, block_pool: BlockPool, block_size: int, enable_prefix_caching: bool = True
    ) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._block_tables: dict[str, list[Block]] = {}
        self._block_hashes: dict[str, list[bytes]] = {}  # of the full blocks, as far as asked for

    def block_ids(self, request: Request) -> tuple[int, ...]:
        return tuple(block.block_id for block in self._block_tables.get(request.request_id, ()))

    def num_blocks(self, request: Request) -> int:
        return len(self._block_tables.get(request.request_id, ()))

    def fits_alone(self, num_tokens: int) -> bool:
        """Whether a sequence of this length fits into the pool when nobody else is there."""
        return self._blocks_for(num_tokens) <= self.block_pool.num_blocks

    def match_prefix(self, request: Request) -> int:
        """Gives a request without blocks the longest run of sealed blocks that its tokens begin with.

        The last token is never taken from the cache: its logits have to be computed.

        Returns:
            The number of tokens whose K and V are there already.
        """
        assert request.request_id not in self._block_tables
        table: list[Block] = []
        # Logits of every prompt position are needed for prompt_logprobs, so all are computed.
        if self.enable_prefix_caching and request.params.prompt_logprobs is None:
            for index in range((request.num_tokens - 1) // self.block_size):
                block = self.block_pool.find(
                    self._block_hash(request, index), self._block_tokens(request, index)
                )
                if block is None:
                    break
                self.block_pool.share(block)
                table.append(block)
        self._block_tables[request.request_id] = table
        return len(table) * self.block_size

    def allocate(self, request: Request, num_tokens: int) -> bool:
        """Grows the block table to hold `num_tokens`; False, and nothing changed, if blocks lack."""
        table = self._block_tables.setdefault(request.request_id, [])
        num_missing = self._blocks_for(num_tokens) - len(table)
        if num_missing > self.block_pool.num_free_blocks:
            return False
        if num_missing > 0:
            table.extend(self.block_pool.allocate(num_missing))
        return True

    def seal(self, request: Request, num_computed_before: int) -> None:
        """Makes the blocks findable that have become full since `num_computed_before`."""
        if not self.enable_prefix_caching:
            return
        first = num_computed_before // self.block_size
        for index in range(first, request.num_computed_tokens // self.block_size):
            self.block_pool.seal(
                self._block_tables[request.request_id][index],
                self._block_hash(request, index),
                self._block_tokens(request, index),
            )

    def release(self, request: Request) -> None:
        """Gives all blocks back, the tail first, so that the longest-lived prefix is evicted last."""
        self.block_pool.release(reversed(self._block_tables.pop(request.request_id, [])))

    def forget(self, request: Request) -> None:
        """Drops what is kept about a request that has ended."""
        self.release(request)
        self._block_hashes.pop(request.request_id, None)

    def check_integrity(self) -> None:
        self.block_pool.check_integrity()
        owners = [block for table in self._block_tables.values() for block in table]
        assert len(owners) == sum(block.ref_count for block in set(owners))
        assert len(set(owners)) + self.block_pool.num_free_blocks == self.block_pool.num_blocks

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _block_tokens(self, request: Request, index: int) -> tuple[int, ...]:
        return tuple(request.token_ids(index * self.block_size, (index + 1) * self.block_size))

    def _block_hash(self, request: Request, index: int) -> bytes:
        """Hash of block `index` and of everything before it, within the request's salt."""
        hashes = self._block_hashes.setdefault(request.request_id, [])
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else hashlib.sha256(request.cache_salt).digest()
            tokens = array("q", self._block_tokens(request, len(hashes))).tobytes()
            hashes.append(hashlib.sha256(parent + tokens).digest())
        return hashes[index]
