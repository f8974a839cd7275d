"""Labels of blocks: numbers by which fronts and routers know what a prefix index has."""

from collections.abc import Sequence

from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.block_tables import (
    BYTES_PER_TOKEN,
    hash_of_block,
    hashed_bytes,
    root_hash,
)

LABELLED_GROUP = 0  # of layers: the first one has full attention if any has (`kv_groups`)


def label(block_hash: bytes) -> int:
    """A number below 2**64: routers of vLLM's events count no block whose hash is bytes."""
    return int.from_bytes(block_hash[:8], "big")


def prompt_labels(token_ids: Sequence[int], block_size: int, salt: CacheSalt) -> list[int]:
    """The labels of the blocks that a request can find: the full ones that do not hold its last token.

    Args:
        salt: of the request, as the engine makes it.
    """
    labels = []
    block_hash, tokens = root_hash(salt, LABELLED_GROUP), hashed_bytes(token_ids)
    size = block_size * BYTES_PER_TOKEN
    for end in range(size, len(tokens), size):
        block_hash = hash_of_block(block_hash, tokens[end - size : end])
        labels.append(label(block_hash))
    return labels
