"""A KV cache of which each machine has the part of its layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.facts.model_config import ModelConfig
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


@dataclass(frozen=True)
class KVPart:
    """The part of a stage.

    Args:
        config: of the stage's layers.
        layout: a cache of the same layers with a single block and slot, here: it knows the layout of the stage's.
        num_bytes: of the stage's whole cache.
    """

    link: StageLink
    config: ModelConfig
    layout: KVCache
    num_bytes: int


class StagedKVCache:
    """The cache as one: every operation on blocks and states goes to all machines. The contents of a block are those of
    the stages, in order, and of this machine at the end.

    Args:
        parts: of the stages, in order.
        own: of the last layers.
    """

    def __init__(self, parts: Sequence[KVPart], own: KVCache) -> None:
        self._parts = parts
        self._links = [part.link for part in parts]
        self.own = own

    @property
    def layers(self) -> Sequence[Any]:
        """Of this machine."""
        return self.own.layers

    @property
    def num_bytes(self) -> int:
        """Of all machines."""
        return self.own.num_bytes + sum(part.num_bytes for part in self._parts)

    @property
    def bytes_per_block(self) -> int:
        return sum(self._block_bytes)

    @property
    def bytes_per_state(self) -> int:
        return sum(self._state_bytes)

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        copied = ask_all(self._links, lambda _: CopyState(source_slot, target_slot))
        if self.own.bytes_per_state:
            self.own.copy_state(source_slot, target_slot)
        for each in copied:
            reply_of(each, Done)

    def read_state(self, slot: int) -> BlockBytes:
        read = ask_all(self._links, lambda _: ReadState(slot))
        parts = [reply_of(each, Contents).contents[0] for each in read]
        own = self.own.read_state(slot).tobytes() if self.own.bytes_per_state else b""
        return _joined([*parts, own])

    def write_state(self, slot: int, data: BlockBytes) -> None:
        *parts, own = _divided(data, self._state_bytes)
        self._write(lambda number: WriteState(slot, parts[number].tobytes()))
        if self.own.bytes_per_state:
            self.own.write_state(slot, own)

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        for part in self._parts:
            if layer < part.config.num_layers:
                (read,) = ask_all([part.link], lambda _: ReadState(slot))
                content = np.frombuffer(reply_of(read, Contents).contents[0], np.uint8)
                part.layout.write_state(0, content)
                return part.layout.read_open_keys(0, layer, group)
            layer -= part.config.num_layers
        return self.own.read_open_keys(slot, layer, group)

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        copied = ask_all(self._links, lambda _: CopyBlocks(list(source_ids), list(target_ids)))
        self.own.copy_blocks(source_ids, target_ids)
        for each in copied:
            reply_of(each, Done)

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        read = ask_all(self._links, lambda _: ReadBlocks(list(block_ids)))
        own = [each.tobytes() for each in self.own.read_blocks(block_ids)]
        parts = [reply_of(each, Contents).contents for each in read]
        return [_joined(contents) for contents in zip(*parts, own, strict=True)]

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        divided = [_divided(each, self._block_bytes) for each in contents]
        self._write(
            lambda number: WriteBlocks(
                list(block_ids), [each[number].tobytes() for each in divided]
            )
        )
        self.own.write_blocks(block_ids, [each[-1] for each in divided])

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        *parts, own = _divided(data, self._block_bytes)
        for part, content in zip(self._parts, parts, strict=True):
            if layer < part.config.num_layers:
                return part.layout.unpack_block(content, layer)
            layer -= part.config.num_layers
        return self.own.unpack_block(own, layer)

    @property
    def _block_bytes(self) -> list[int]:
        return [
            *(part.layout.bytes_per_block for part in self._parts),
            self.own.bytes_per_block,
        ]

    @property
    def _state_bytes(self) -> list[int]:
        return [
            *(part.layout.bytes_per_state for part in self._parts),
            self.own.bytes_per_state,
        ]

    def _write(self, message: Callable[[int], ToStage]) -> None:
        for each in ask_all(self._links, message):
            reply_of(each, Done)


def _joined(contents: Sequence[bytes]) -> BlockBytes:
    return np.frombuffer(b"".join(contents), np.uint8)


def _divided(data: BlockBytes, sizes: Sequence[int]) -> list[BlockBytes]:
    ends = np.cumsum(sizes)
    assert data.shape == (ends[-1],)
    return np.split(data, ends[:-1])
