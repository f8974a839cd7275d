"""A KV cache of which each rank has its share of the kv-heads."""

from collections.abc import Sequence

import numpy as np

from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.stages.kv_cache_in_parts import KVCacheInParts
from pellucid.stages.link import StageLink


class DividedKVCache(KVCacheInParts):
    """The shares of all ranks; this process is the first one.

    Args:
        links: to the other ranks, in order.
        number: by which these know their shares.
        layout: a cache like that of each rank with a single block and slot.
        own: of this process.
    """

    def __init__(
        self, links: Sequence[StageLink], number: int, layout: KVCache, own: KVCache
    ) -> None:
        super().__init__(links, number, [layout] * len(links), own)

    @property
    def num_bytes(self) -> int:
        """Of each rank."""
        return self.own.num_bytes

    def unpack_block(self, data: BlockBytes, layer: int) -> tuple[HostArray, HostArray]:
        *others, own = self._contents_of(data)
        shares = [self.own.unpack_block(each, layer) for each in (own, *others)]
        keys, values = (np.concatenate(both, axis=1) for both in zip(*shares, strict=True))
        return keys, values

    def read_open_keys(self, slot: int, layer: int, group: int) -> HostArray:
        others = range(len(self._links))
        shares = [
            self.own.read_open_keys(slot, layer, group),
            *(self._open_keys_of(number, slot, layer, group) for number in others),
        ]
        return np.concatenate(shares, axis=1)
