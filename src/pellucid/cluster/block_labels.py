"""Labels of blocks: numbers by which fronts and routers know what a prefix index has."""

from collections.abc import Sequence

from pellucid.scheduling.block import hash_of_block, root_hash

LABELLED_GROUP = 0  # of layers: the first one has full attention if any has (`kv_groups`)


def label(block_hash: bytes) -> int:
    """A number below 2**64: routers of vLLM's events count no block whose hash is bytes."""
    return int.from_bytes(block_hash[:8], "big")


def prompt_labels(token_ids: Sequence[int], block_size: int, salt: bytes) -> list[int]:
    """The labels of the blocks that a request can find: the full ones that do not hold its last token.

    Args:
        salt: of the request, as the engine makes it.
    """
    labels = []
    block_hash = root_hash(salt, LABELLED_GROUP)
    for end in range(block_size, len(token_ids), block_size):
        block_hash = hash_of_block(block_hash, token_ids[end - block_size : end])
        labels.append(label(block_hash))
    return labels
