"""State pieces: recurrent states of a sequence, cut into pieces of the size of a block.

So the slots of the swap file and the files of the prefix store hold states as they hold blocks: their limits,
checksums and removal are the same ones.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from pellucid.backends.ops import BlockBytes


def num_pieces(bytes_per_state: int, bytes_per_block: int) -> int:
    """How many pieces recurrent states have, at least 1: those of a convolution over single rows are empty."""
    return max(1, -(-bytes_per_state // bytes_per_block))


def split_state(data: BlockBytes, bytes_per_block: int) -> list[BlockBytes]:
    """The pieces [bytes_per_block] of states; the last one is filled up with zeros."""
    pieces = np.zeros((num_pieces(len(data), bytes_per_block), bytes_per_block), np.uint8)
    pieces.reshape(-1)[: len(data)] = data
    return list(pieces)


def join_pieces(pieces: Sequence[BlockBytes], bytes_per_state: int) -> BlockBytes:
    """The states that `split_state` cut into pieces."""
    return np.concatenate(pieces)[:bytes_per_state]


def piece_hashes(block_hash: bytes, count: int) -> list[bytes]:
    """The keys of the pieces of the states at the end of a block; none is the hash of a block."""
    hashes: list[bytes] = []
    for index in range(count):
        person = f"states {index}".encode()[:16]
        hashes.append(hashlib.blake2b(block_hash, digest_size=32, person=person).digest())
    return hashes
