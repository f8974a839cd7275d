"""A KV cache of which each process has a part."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.stages.link import StageLink, ask_all, reply_of
from pellucid.stages.messages import (
    Contents,
    CopyBlocks,
    CopyState,
    Done,
    ReadBlocks,
    ReadState,
    ToStage,
    WriteBlocks,
    WriteState,
)


class KVCacheInParts(ABC):
    """The cache as one: every operation on blocks and states goes to all processes. The contents of a block are those
    of the other processes, in order, and of this one at the end.

    Args:
        links: to the other processes.
        number: by which these know their parts.
        layouts: of each of them, a cache like its own with a single block and slot, here: it knows the layout.
        own: of this process.
    """

    def __init__(
        self, links: Sequence[StageLink], number: int, layouts: Sequence[KVCache], own: KVCache
    ) -> None:
        self._links = links
        self.number = number
        self._layouts = layouts
        self.own = own
        self._block_bytes = [each.bytes_per_block for each in (*layouts, own)]
        self._state_bytes = [each.bytes_per_state for each in (*layouts, own)]

    @property
    def layers(self) -> Sequence[Any]:
        """Of this process."""
        return self.own.layers

    @property
    @abstractmethod
    def num_bytes(self) -> int: ...

    @property
    def bytes_per_block(self) -> int:
        return sum(self._block_bytes)

    @property
    def bytes_per_state(self) -> int:
        return sum(self._state_bytes)

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        copied = ask_all(self._links, lambda _: CopyState(self.number, source_slot, target_slot))
        if self.own.bytes_per_state:
            self.own.copy_state(source_slot, target_slot)
        for each in copied:
            reply_of(each, Done)

    def read_state(self, slot: int) -> BlockBytes:
        read = ask_all(self._links, lambda _: ReadState(self.number, slot))
        own = self.own.read_state(slot).tobytes() if self.own.bytes_per_state else b""
        return _joined([*(reply_of(each, Contents).contents[0] for each in read), own])

    def write_state(self, slot: int, data: BlockBytes) -> None:
        *parts, own = _divided(data, self._state_bytes)
        self._write(lambda number: WriteState(self.number, slot, parts[number].tobytes()))
        if self.own.bytes_per_state:
            self.own.write_state(slot, own)

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        copied = ask_all(
            self._links, lambda _: CopyBlocks(self.number, list(source_ids), list(target_ids))
        )
        self.own.copy_blocks(source_ids, target_ids)
        for each in copied:
            reply_of(each, Done)

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        read = ask_all(self._links, lambda _: ReadBlocks(self.number, list(block_ids)))
        own = [each.tobytes() for each in self.own.read_blocks(block_ids)]
        parts = [reply_of(each, Contents).contents for each in read]
        return [_joined(contents) for contents in zip(*parts, own, strict=True)]

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        divided = [_divided(each, self._block_bytes) for each in contents]
        self._write(
            lambda number: WriteBlocks(
                self.number, list(block_ids), [each[number].tobytes() for each in divided]
            )
        )
        self.own.write_blocks(block_ids, [each[-1] for each in divided])

    @abstractmethod
    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]: ...

    @abstractmethod
    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray: ...

    def _contents_of(self, data: BlockBytes) -> list[BlockBytes]:
        """What each process has of a block."""
        return _divided(data, self._block_bytes)

    def _open_keys_of(self, number: int, slot: int, layer: int, group: int) -> HostArray:
        """As `read_open_keys`, of another process."""
        (read,) = ask_all([self._links[number]], lambda _: ReadState(self.number, slot))
        content = np.frombuffer(reply_of(read, Contents).contents[0], np.uint8)
        layout = self._layouts[number]
        layout.write_state(0, content)
        return layout.read_open_keys(0, layer, group)

    def _write(self, message: Callable[[int], ToStage]) -> None:
        for each in ask_all(self._links, message):
            reply_of(each, Done)


def _joined(contents: Sequence[bytes]) -> BlockBytes:
    return np.frombuffer(b"".join(contents), np.uint8)


def _divided(data: BlockBytes, sizes: Sequence[int]) -> list[BlockBytes]:
    ends = np.cumsum(sizes)
    assert data.shape == (ends[-1],)
    return np.split(data, ends[:-1])
