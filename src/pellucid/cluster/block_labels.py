"""Labels of blocks: numbers by which fronts and routers know what a prefix index has."""

import struct

from pellucid.backends.native import hash_blocks
from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.block_tables import root_hash

LABELLED_GROUP = 0  # of layers: the first one has full attention if any has (`kv_groups`)
_LABELS = struct.Struct(">Q24x")  # of hashes of 32 bytes, one after the other


def label(block_hash: bytes) -> int:
    """A number below 2**64: routers of vLLM's events count no block whose hash is bytes."""
    return int.from_bytes(block_hash[:8], "big")


def prompt_labels(
    token_ids: list[int] | tuple[int, ...], block_size: int, salt: CacheSalt
) -> list[int]:
    """The labels of the blocks that a request can find: the full ones that do not hold its last token.

    The hashes are those of `hash_of_block`, in one native call: a front hashes whole prompts while other requests wait.

    Args:
        salt: of the request, as the engine makes it.
    """
    hashes = hash_blocks(root_hash(salt, LABELLED_GROUP), token_ids, block_size)
    labels = [number for (number,) in _LABELS.iter_unpack(hashes)]
    return labels[: (len(token_ids) - 1) // block_size]
