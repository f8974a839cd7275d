"""The messages of vLLM's KV events, as msgpack.

https://docs.vllm.ai/en/latest/api/vllm/distributed/kv_events: a batch is an array, an event a map with its type.
"""

from typing import TypeAlias

import msgspec

MEMORY = "GPU"  # the word for the memory of attention; readers take "CPU" for a lower tier


class Event(msgspec.Struct, kw_only=True, tag_field="type", omit_defaults=True):
    """A change of the blocks that can be found."""


class BlockStored(Event):
    """Blocks of a chain, each the parent of the next one.

    Attributes:
        block_hashes: labels, a number below 2**64 for each block. Readers compute hashes of their own from the tokens.
        parent_block_hash: the label of the block before the first one; None: the first one begins a text.
        token_ids: of all blocks, one after the other.
        block_size: tokens in a block.
        cache_salt: only requests with this salt find the blocks; None: those without a salt.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    medium: str
    cache_salt: str | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(Event):
    pass


CacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """Attributes: ts: seconds since 1970. data_parallel_rank: of the engine among those of a server."""

    ts: float
    events: list[CacheEvent]
    data_parallel_rank: int = 0
