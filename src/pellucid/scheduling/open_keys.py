"""Open keys: which request has a slot for keys that are not codes yet, and how far back it can go with them."""

from collections.abc import Sequence
from typing import NamedTuple

from pellucid.scheduling.block_ops import BlockOp
from pellucid.scheduling.request import Request
from pellucid.scheduling.request_slots import RequestSlots
from pellucid.scheduling.state_pool import StatePool


class OpenSlots(NamedTuple):
    """The slots for open keys.

    Attributes:
        num_slots: one for each request that runs, and one for a look at a request.
        group_positions: positions whose keys become codes together.
    """

    num_slots: int
    group_positions: int


class OpenKeys:
    """Owns which slot holds whose open keys.

    A format of keys by dimension makes codes of a whole group of positions. A slot has the keys of the two latest
    groups before that, as they were computed. Blocks have the codes of all complete groups, so a request whose next
    position begins a group needs no slot, and can have any.

    A request that runs has a slot. One that waits keeps its slot until another needs it: then it goes back to the
    beginning of a group.

    Args:
        slots: how many there are.
        block_ops: gets the copies of slots.
    """

    def __init__(self, slots: OpenSlots, block_ops: list[BlockOp]) -> None:
        self._group = slots.group_positions
        self._slots = RequestSlots(StatePool(slots.num_slots), block_ops)
        # By request_id, of requests with a slot: no keys before this position are in it. A group begins there.
        self._first: dict[str, int] = {}

    def slot(self, request: Request) -> int:
        """The slot of a request that has one."""
        return self._slots.of(request)

    def has_slot(self, request: Request) -> bool:
        return self._slots.find(request) is not None

    def lacks_slot(self, request: Request) -> bool:
        """Whether a request needs a slot, and none is free."""
        return self._slots.lacks(request)

    def ensure_slot(self, request: Request, num_tokens: int) -> None:
        """Gives a request without a slot one; one must be free.

        Args:
            num_tokens: its computed tokens.
        """
        if request.request_id not in self._first:
            assert num_tokens % self._group == 0
            self._slots.ensure(request)
            self._first[request.request_id] = num_tokens

    def restart(self, request: Request, num_tokens: int) -> None:
        """A request that was admitted goes on at `num_tokens`. If a group begins there, its slot has keys of other
        groups, and is taken back."""
        if self._is_whole(num_tokens):
            self.release_slot(request)

    def release_slot(self, request: Request) -> None:
        """Takes back the slot of a request, if it has one."""
        self._slots.release(request)
        self._first.pop(request.request_id, None)

    def whole_groups(self, num_tokens: int) -> int:
        """`num_tokens`, without those of a group that is not complete."""
        return num_tokens // self._group * self._group

    def reachable(self, request: Request, num_tokens: int) -> int:
        """The last position up to `num_tokens` from which a request, or a fork of it with a copy of its slot, can
        go on.

        Args:
            num_tokens: at most the request's computed tokens.
        """
        if num_tokens >= self._first_of(request):
            return num_tokens
        return self.whole_groups(num_tokens)

    def rewind(self, request: Request, num_tokens: int) -> None:
        """A request goes back to a position that is `reachable`; its `num_computed_tokens` are still those before."""
        if request.request_id in self._first:
            self._first[request.request_id] = min(num_tokens, self._first_of(request))

    def fork(self, parent: Request, child: Request, num_tokens: int) -> int:
        """Gives a child without a slot a copy of the parent's, if it needs one and one is free.

        Args:
            num_tokens: at most the parent's computed tokens.

        Returns:
            The last position up to `num_tokens` from which the child can go on.
        """
        num_tokens = self.reachable(parent, num_tokens)
        if self._is_whole(num_tokens):
            return num_tokens
        if not self._slots.copy(parent, child):
            return self.whole_groups(num_tokens)
        self._first[child.request_id] = self._first_of(parent)
        return num_tokens

    def reassign(self, requests: Sequence[Request], parents: Sequence[int]) -> list[int]:
        """Gives each request i a copy of the slot of requests[parents[i]], all at once.

        Returns:
            The positions from which each can go on: the computed ones of its parent, or, where no slot was free, the
            whole groups of these.
        """
        num_tokens = [requests[parent].num_computed_tokens for parent in parents]
        firsts = [self._first_of(requests[parent]) for parent in parents]
        copied = [not self._is_whole(num) for num in num_tokens]
        for index in self._slots.reassign(requests, parents, copied):
            num_tokens[index] = self.whole_groups(num_tokens[index])
        for request, first in zip(requests, firsts, strict=True):
            self._first.pop(request.request_id, None)
            if self.has_slot(request):
                self._first[request.request_id] = first
        return num_tokens

    def _first_of(self, request: Request) -> int:
        """The first position from which a request can go on at any: of the group before its latest, or what was
        stored since it has its slot."""
        num_tokens = request.num_computed_tokens
        first = self._first.get(request.request_id)
        if first is None:
            return num_tokens
        return max(first, ((num_tokens - 1) // self._group - 1) * self._group)

    def _is_whole(self, num_tokens: int) -> bool:
        return num_tokens % self._group == 0

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Asserts that requests without a slot need none.

        Args:
            requests: all that have blocks.
        """
        self._slots.check_integrity()
        assert self._slots.holders == self._first.keys()
        assert self._slots.holders <= {request.request_id for request in requests}
        for request in requests:
            assert self.has_slot(request) or self._is_whole(request.num_computed_tokens)
