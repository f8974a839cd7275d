"""A block of the KV cache."""

from pellucid.scheduling.block_key import BlockKey


class Block:
    """`block_size` slots of the KV cache. The pool alone writes its fields."""

    __slots__ = ("block_id", "key", "ref_count", "sealed_by")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        # Set once the block is full and sealed: its contents are then what the key says.
        self.key: BlockKey | None = None
        self.sealed_by: str | None = None  # request_id
