"""The block file: one KV block as the bytes of a file.

8 bytes     "pellucid"
4 + 4       version of this layout, number of tokens; all numbers little-endian
8           bytes of contents
32          fingerprint: the model and the cache format that the contents are of
32          block hash
8 each      token ids
...         contents: what `KVCache.read_blocks` gave
32          SHA-256 of everything before it; with a key its HMAC-SHA-256 (RFC 2104)
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass

import numpy as np

from pellucid.backends.ops import BlockBytes

MAGIC = b"pellucid"
VERSION = 2
_HEADER = struct.Struct("<8sIIQ32s32s")
_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedBlockError(Exception):
    """A file is not what was written: cut off, or changed since."""


class ForeignBlockError(Exception):
    """An undamaged file with other contents: another version, model or prefix; or not a block file."""


@dataclass(frozen=True)
class BlockFileFormat:
    """The common properties of the files of one model and cache format.

    Args:
        fingerprint: 32 bytes.
        block_size: tokens per block.
        bytes_per_block: of all layers.
        key: secret of those who may write such files; None: whoever can write a file may.
    """

    fingerprint: bytes
    block_size: int
    bytes_per_block: int
    key: bytes | None = None

    @property
    def file_bytes(self) -> int:
        return _HEADER.size + 8 * self.block_size + self.bytes_per_block + _DIGEST_BYTES

    def encode(
        self, block_hash: bytes, token_ids: tuple[int, ...], data: BlockBytes
    ) -> tuple[bytes, memoryview, bytes]:
        """The parts of a file, in order.

        Args:
            block_hash: 32 bytes.
            token_ids: [block_size].
            data: [bytes_per_block].
        """
        assert len(token_ids) == self.block_size and len(data) == self.bytes_per_block
        head = self._head(block_hash, token_ids)
        return head, data.data, self._digest(head, data.data)

    def decode(self, file: BlockBytes, block_hash: bytes, token_ids: tuple[int, ...]) -> BlockBytes:
        """The contents of a block [bytes_per_block], a view of `file`.

        Args:
            file: all of its bytes.
            block_hash: that of the block that was asked for.
            token_ids: its tokens.

        Raises:
            DamagedBlockError: the file is cut off, or its bytes are not those that were written with this key.
            ForeignBlockError: it holds another block than that, or is of another version or model.
        """
        if len(file) != self.file_bytes:
            raise DamagedBlockError(f"has {len(file)} bytes instead of {self.file_bytes}")
        digest = self._digest(file[:-_DIGEST_BYTES].data)
        if not hmac.compare_digest(digest, file[-_DIGEST_BYTES:].tobytes()):
            raise DamagedBlockError("its checksum is wrong")
        expected = np.frombuffer(self._head(block_hash, token_ids), np.uint8)
        if not np.array_equal(file[: len(expected)], expected):
            raise ForeignBlockError("is of another version, model or prefix")
        return file[len(expected) : -_DIGEST_BYTES]

    def _digest(self, *parts: bytes | memoryview) -> bytes:
        digest = (
            hashlib.sha256() if self.key is None else hmac.new(self.key, digestmod=hashlib.sha256)
        )
        for part in parts:
            digest.update(part)
        return digest.digest()

    def _head(self, block_hash: bytes, token_ids: tuple[int, ...]) -> bytes:
        header = _HEADER.pack(
            MAGIC, VERSION, len(token_ids), self.bytes_per_block, self.fingerprint, block_hash
        )
        return header + struct.pack(f"<{len(token_ids)}q", *token_ids)
