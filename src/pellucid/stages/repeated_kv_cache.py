"""A KV cache that each rank has as a whole."""

from collections.abc import Sequence
from typing import Any

from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.stages.link import StageLink, ask_all, reply_of
from pellucid.stages.messages import CopyBlocks, CopyState, Done, ToStage, WriteBlocks, WriteState


class RepeatedKVCache:
    """What is written goes to all ranks; what is read comes from this process.

    Args:
        links: to the other ranks.
        number: by which these know their caches.
        own: of this process.
    """

    def __init__(self, links: Sequence[StageLink], number: int, own: KVCache) -> None:
        self._links = links
        self.number = number
        self.own = own

    @property
    def layers(self) -> Sequence[Any]:
        return self.own.layers

    @property
    def num_bytes(self) -> int:
        """Of each rank."""
        return self.own.num_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.own.bytes_per_block

    @property
    def bytes_per_state(self) -> int:
        return self.own.bytes_per_state

    def copy_state(self, source_slot: int, target_slot: int) -> None:
        self._ask(CopyState(self.number, source_slot, target_slot))
        self.own.copy_state(source_slot, target_slot)

    def read_state(self, slot: int) -> BlockBytes:
        return self.own.read_state(slot)

    def write_state(self, slot: int, data: BlockBytes) -> None:
        self._ask(WriteState(self.number, slot, data.tobytes()))
        self.own.write_state(slot, data)

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        self._ask(CopyBlocks(self.number, list(source_ids), list(target_ids)))
        self.own.copy_blocks(source_ids, target_ids)

    def read_blocks(self, block_ids: Sequence[int]) -> list[BlockBytes]:
        return self.own.read_blocks(block_ids)

    def write_blocks(self, block_ids: Sequence[int], contents: Sequence[BlockBytes]) -> None:
        self._ask(WriteBlocks(self.number, list(block_ids), [each.tobytes() for each in contents]))
        self.own.write_blocks(block_ids, contents)

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        return self.own.unpack_block(data, layer)

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        return self.own.read_open_keys(slot, layer, group)

    def _ask(self, message: ToStage) -> None:
        for each in ask_all(self._links, lambda _: message):
            reply_of(each, Done)
