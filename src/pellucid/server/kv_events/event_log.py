"""The numbered batches of KV events, and what a reader that missed some of them needs instead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from pellucid.async_engine import BlockKey
from pellucid.cluster.block_labels import label
from pellucid.server.kv_events.messages import (
    MEMORY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EventBatch,
)

MAX_BATCHES = 4096  # that are kept for readers that missed them


class Change(NamedTuple):
    """A block was added to the prefix index, or removed from it."""

    key: BlockKey
    is_added: bool


class NumberedBatch(NamedTuple):
    """A batch as it is sent."""

    number: int
    payload: bytes


class EventLog:
    """Turns changes of the prefix index into batches, and remembers what readers may ask for again.

    The numbers begin with the microseconds since 1970: a reader takes a server that starts again for the same one,
    with new events.

    Args:
        block_size: tokens in a block.
        clock: seconds since 1970.
        max_batches: that are kept.
    """

    def __init__(
        self, block_size: int, clock: Callable[[], float], max_batches: int = MAX_BATCHES
    ) -> None:
        self._block_size = block_size
        self._clock = clock
        self._next_number = int(clock() * 1e6)
        self._batches: deque[NumberedBatch] = deque(maxlen=max_batches)
        # The blocks in the index, by parent and by hash.
        self._children: dict[bytes, dict[bytes, BlockKey]] = {}
        self._encoder = msgspec.msgpack.Encoder()

    def first(self) -> NumberedBatch:
        """Begins: whatever readers knew of an earlier server is gone."""
        return self._append([AllBlocksCleared()])

    def add(self, changes: Iterable[Change]) -> NumberedBatch:
        """The batch that tells of changes; without changes a sign of life, by which readers notice what they missed."""
        events: list[CacheEvent] = []
        for key, is_added in changes:
            if not is_added:
                self._forget(key)
                _remove(events, key)
                continue
            self._children.setdefault(key.parent_hash, {})[key.block_hash] = key
            # A reader that began while the parent was gone has not heard of the blocks behind it.
            for each in (key, *self._behind(key.block_hash)):
                self._store(events, each)
        return self._append(events)

    def since(self, number: int) -> Iterator[NumberedBatch]:
        """The batches from `number` on. If some of them are no longer kept, one batch with all blocks instead, with the
        last number."""
        if self._batches and number >= self._batches[0].number:
            yield from [batch for batch in self._batches if batch.number >= number]
            return
        events: list[CacheEvent] = [AllBlocksCleared()]
        for key in self._roots():
            for each in (key, *self._behind(key.block_hash)):
                self._store(events, each)
        yield NumberedBatch(self._next_number - 1, self._encode(events))

    def _roots(self) -> list[BlockKey]:
        return [
            key for group in self._children.values() for key in group.values() if key.index == 0
        ]

    def _behind(self, block_hash: bytes) -> Iterator[BlockKey]:
        """The blocks that continue a block: each after its parent."""
        waiting = [*self._children.get(block_hash, {}).values()]
        while waiting:
            key = waiting.pop()
            yield key
            waiting += self._children.get(key.block_hash, {}).values()

    def _forget(self, key: BlockKey) -> None:
        siblings = self._children[key.parent_hash]
        del siblings[key.block_hash]
        if not siblings:
            del self._children[key.parent_hash]

    def _store(self, events: list[CacheEvent], key: BlockKey) -> None:
        """Adds a block to the last event if it continues its chain."""
        last = events[-1] if events else None
        parent = None if key.index == 0 else label(key.parent_hash)
        if isinstance(last, BlockStored) and last.block_hashes[-1] == parent:
            last.block_hashes.append(label(key.block_hash))
            last.token_ids.extend(key.token_ids)
            return
        events.append(
            BlockStored(
                block_hashes=[label(key.block_hash)],
                parent_block_hash=parent,
                token_ids=list(key.token_ids),
                block_size=self._block_size,
                medium=MEMORY,
                cache_salt=_salt_of(key),
            )
        )

    def _append(self, events: list[CacheEvent]) -> NumberedBatch:
        batch = NumberedBatch(self._next_number, self._encode(events))
        self._next_number += 1
        self._batches.append(batch)
        return batch

    def _encode(self, events: list[CacheEvent]) -> bytes:
        return self._encoder.encode(EventBatch(self._clock(), events))


def _salt_of(key: BlockKey) -> str | None:
    """The salt of the caller. Prompts whose keys depend on their length have one that no caller has."""
    own = key.salt.own if key.salt.num_prompt_tokens is None else key.salt.text
    # Half a surrogate pair is no text on the wire.
    return None if own is None else own.encode(errors="replace").decode()


def _remove(events: list[CacheEvent], key: BlockKey) -> None:
    last = events[-1] if events else None
    if isinstance(last, BlockRemoved):
        last.block_hashes.append(label(key.block_hash))
    else:
        events.append(BlockRemoved(block_hashes=[label(key.block_hash)], medium=MEMORY))
