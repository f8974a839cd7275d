"""The prefix index: sealed blocks by hash, and the reasons why a prefix is not found."""

from collections import Counter, OrderedDict
from enum import Enum
from itertools import islice
from typing import Protocol

from msgspec import Struct

from pellucid.scheduling.block import Block, BlockKey

EVICTED_PER_BLOCK = 4  # evicted blocks that are remembered, for each block of the pool
MAX_COMPARED = 32  # blocks with the same parent that a miss is compared with, the newest first


class MissReason(Enum):
    NEVER_SEEN = "never_seen"  # no request has computed these tokens, as far as the index remembers
    EVICTED = "evicted"  # the block was in the index, and has been evicted
    DIFFERS = "differs"  # another text begins like this one and then differs
    # What is left is shorter than a block: only full ones are shared.
    PARTIAL_BLOCK = "partial_block"
    DISABLED = "disabled"  # prefix caching is off, or prompt_logprobs need all positions computed
    # The blocks are there, but no snapshot of the recurrent states at their end.
    RECURRENT = "recurrent"
    SALT = "salt"  # the block is in the index under another salt of the same caller


class PrefixMiss(Struct, frozen=True):
    """Why the match ended where it did.

    Attributes:
        at_token: the first position that was not found.
        near_request_id: of DIFFERS, the request that computed the block that agrees longest.
        differs_at_token: of DIFFERS, the first position with another token.
        differing_token_ids: of DIFFERS, the tokens there: this request's, the other's.
        num_evicted_since: of EVICTED, how many sealed blocks were evicted after this one.
        snapshot_at_token: of RECURRENT, up to where the blocks are there: the request takes a snapshot there.
    """

    reason: MissReason
    at_token: int
    near_request_id: str | None = None
    differs_at_token: int | None = None
    differing_token_ids: tuple[int, int] | None = None
    num_evicted_since: int | None = None
    snapshot_at_token: int | None = None


class PrefixMatch(Struct, frozen=True):
    """What a request found when it was admitted.

    Attributes:
        num_tokens: positions found.
        num_loaded_tokens: those of them that came from the prefix store.
        miss: None if all tokens but the last were found.
    """

    num_tokens: int
    num_loaded_tokens: int
    miss: PrefixMiss | None


class PrefixListener(Protocol):
    """Is told of every change of a prefix index, on the engine's thread: it should be done in microseconds."""

    def added(self, key: BlockKey) -> None: ...

    def removed(self, key: BlockKey) -> None: ...


class PrefixIndex:
    """Sealed blocks by hash and by parent.

    Args:
        num_blocks: of the pool; bounds the memory of what was evicted.

    Attributes:
        listener: is told of every change; None: nobody is.
    """

    def __init__(self, num_blocks: int) -> None:
        self.listener: PrefixListener | None = None
        self._blocks: dict[bytes, Block] = {}
        # parent hash -> first token -> block hash -> None, in order of sealing
        self._children: dict[bytes, dict[int, dict[bytes, None]]] = {}
        # Callers, groups and token ids, whatever the salt.
        self._first_blocks: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
        self._evicted: OrderedDict[bytes, int] = OrderedDict()  # hash -> evictions until then
        self._max_evicted = num_blocks * EVICTED_PER_BLOCK
        self._num_evicted = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key.block_hash in self._blocks

    def find(self, key: BlockKey) -> Block | None:
        """The block with this hash, if its tokens are the same too."""
        block = self._blocks.get(key.block_hash)
        if block is None or block.key is None or block.key.token_ids != key.token_ids:
            return None
        return block

    def add(self, key: BlockKey, block: Block) -> None:
        self._blocks[key.block_hash] = block
        children = self._children.setdefault(key.parent_hash, {})
        children.setdefault(key.token_ids[0], {})[key.block_hash] = None
        if key.index == 0:
            self._first_blocks[_without_salt(key)] += 1
        self._evicted.pop(key.block_hash, None)
        if self.listener is not None:
            self.listener.added(key)

    def remove(self, key: BlockKey) -> None:
        del self._blocks[key.block_hash]
        children = self._children[key.parent_hash]
        alike = children[key.token_ids[0]]
        del alike[key.block_hash]
        if not alike:
            del children[key.token_ids[0]]
        if not children:
            del self._children[key.parent_hash]
        if key.index == 0:
            first = _without_salt(key)
            self._first_blocks[first] -= 1
            if not self._first_blocks[first]:
                del self._first_blocks[first]
        self._num_evicted += 1
        self._evicted[key.block_hash] = self._num_evicted
        if len(self._evicted) > self._max_evicted:
            self._evicted.popitem(last=False)
        if self.listener is not None:
            self.listener.removed(key)

    def explain_miss(self, key: BlockKey, at_token: int) -> PrefixMiss:
        """Why there is no block with this key, though there are those before it.

        Args:
            at_token: the first position that was not found.
        """
        evicted = self._evicted.get(key.block_hash)
        if evicted is not None:
            since = self._num_evicted - evicted
            return PrefixMiss(MissReason.EVICTED, at_token, num_evicted_since=since)
        if key.index == 0 and _without_salt(key) in self._first_blocks:
            return PrefixMiss(MissReason.SALT, at_token)
        nearest = max(
            self._candidates(key),
            key=lambda block: _num_common(key, block),
            default=None,
        )
        if nearest is None or nearest.key is None:
            return PrefixMiss(MissReason.NEVER_SEEN, at_token)
        offset = _num_common(key, nearest)
        return PrefixMiss(
            MissReason.DIFFERS,
            at_token,
            nearest.sealed_by,
            key.index * len(key.token_ids) + offset,
            (key.token_ids[offset], nearest.key.token_ids[offset]),
        )

    def _candidates(self, key: BlockKey) -> list[Block]:
        """The newest blocks with the same parent and the same first token, or any of the parent's.

        A text that differs at its very first token is like no other: it has none.
        """
        children = self._children.get(key.parent_hash, {})
        alike = children.get(key.token_ids[0])
        if alike is None:
            if key.index == 0 or not children:
                return []
            alike = next(reversed(children.values()))
        return [self._blocks[block_hash] for block_hash in islice(reversed(alike), MAX_COMPARED)]

    def check_integrity(self) -> None:
        for block_hash, block in self._blocks.items():
            assert block.key is not None and block.key.block_hash == block_hash
            assert block_hash in self._children[block.key.parent_hash][block.key.token_ids[0]]
        assert all(self._children.values())
        alike = [group for children in self._children.values() for group in children.values()]
        assert sum(map(len, alike)) == len(self._blocks) and all(alike)
        first_blocks = (block.key for block in self._blocks.values())
        assert self._first_blocks == Counter(
            _without_salt(key) for key in first_blocks if key is not None and key.index == 0
        )
        assert len(self._evicted) <= self._max_evicted


def _without_salt(key: BlockKey) -> tuple[str, int, tuple[int, ...]]:
    return key.caller, key.group, key.token_ids


def _num_common(key: BlockKey, block: Block) -> int:
    """Tokens that both begin with."""
    assert block.key is not None
    pairs = enumerate(zip(key.token_ids, block.key.token_ids, strict=True))
    return next((i for i, (own, other) in pairs if own != other), len(key.token_ids))
