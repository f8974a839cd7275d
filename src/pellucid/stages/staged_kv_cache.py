"""A KV cache of which each machine has the part of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.facts.model_config import ModelConfig
from pellucid.stages.kv_cache_in_parts import KVCacheInParts
from pellucid.stages.link import StageLink


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


class StagedKVCache(KVCacheInParts):
    """The parts of the stages, in order of their layers, and of this machine, which has the last ones.

    Args:
        parts: of the stages.
        number: by which these know their parts.
        own: of this machine.
    """

    def __init__(self, parts: Sequence[KVPart], number: int, own: KVCache) -> None:
        links, layouts = [part.link for part in parts], [part.layout for part in parts]
        super().__init__(links, number, layouts, own)
        self._parts = parts

    @property
    def num_bytes(self) -> int:
        """Of all machines."""
        return self.own.num_bytes + sum(part.num_bytes for part in self._parts)

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        *contents, own = self._contents_of(data)
        number, of_part = self._place(layer)
        if number is None:
            return self.own.unpack_block(own, of_part)
        return self._layouts[number].unpack_block(contents[number], of_part)

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        number, of_part = self._place(layer)
        if number is None:
            return self.own.read_open_keys(slot, of_part, group)
        return self._open_keys_of(number, slot, of_part, group)

    def _place(self, layer: int) -> tuple[int | None, int]:
        """The stage that has a layer, None for this machine, and the layer's number in that part."""
        for number, part in enumerate(self._parts):
            if layer < part.config.num_layers:
                return number, layer
            layer -= part.config.num_layers
        return None, layer
