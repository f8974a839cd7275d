"""The router: which replica gets a request, by the longest cached prefix and by load. Plain data, no clock."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# A request that decodes delays others by a share of each step; it counts as this many tokens of a prompt.
DECODE_TOKENS = 32


class Placement(NamedTuple):
    """Where a request goes.

    Attributes:
        num_cached_tokens: of its prompt, that the replica has or is about to compute for others.
    """

    replica: int
    num_cached_tokens: int


@dataclass
class _Placed:
    """A request on a replica."""

    replica: int
    keys: Sequence[int]
    num_prompt_tokens: int  # that are left to compute


@dataclass
class _Replica:
    """What the router knows of a replica.

    Attributes:
        blocks: labels of the blocks in its prefix index.
        expected: labels of the blocks of prompts that it computes now, and how many requests have each.
        num_tokens: of prompts that it has yet to compute.
        num_requests: unfinished.
        num_tokens_of_others, num_requests_of_others: the same, of other fronts.
    """

    blocks: set[int] = field(default_factory=set)
    expected: Counter[int] = field(default_factory=Counter)
    num_tokens: int = 0
    num_requests: int = 0
    num_tokens_of_others: int = 0
    num_requests_of_others: int = 0

    def num_found(self, keys: Sequence[int]) -> int:
        """How many of the first blocks of a prompt need no computation."""
        for index, key in enumerate(keys):
            if key not in self.blocks and key not in self.expected:
                return index
        return len(keys)


class Router:
    """Sends a request to the replica that has the fewest tokens to compute until the request's first one: those of the
    prompt that it does not have, and those that wait there already.

    A prompt that has been sent to a replica counts as cached there at once, so requests that arrive together and
    begin alike stay together.

    Args:
        block_size: tokens in a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._replicas: dict[int, _Replica] = {}
        self._placed: dict[str, _Placed] = {}
        self._last = -1  # replica that was chosen

    # ---- replicas, and what their prefix indexes have

    def join(self, replica: int) -> None:
        """Adds a replica without blocks and requests."""
        assert replica not in self._replicas
        self._replicas[replica] = _Replica()

    def leave(self, replica: int) -> None:
        """Removes a replica, with its blocks and requests."""
        del self._replicas[replica]
        for request_id in [name for name, at in self._placed.items() if at.replica == replica]:
            del self._placed[request_id]

    def added(self, replica: int, label: int) -> None:
        self._replicas[replica].blocks.add(label)

    def removed(self, replica: int, label: int) -> None:
        self._replicas[replica].blocks.discard(label)

    def shared(self, replica: int, num_requests: int, num_tokens: int) -> None:
        """What a replica has to do for other fronts now: requests, and tokens of prompts."""
        found = self._replicas[replica]
        found.num_requests_of_others, found.num_tokens_of_others = num_requests, num_tokens

    @property
    def replicas(self) -> Collection[int]:
        """Those that have joined."""
        return self._replicas.keys()

    def blocks(self, replica: int) -> Collection[int]:
        """Labels of the blocks in its prefix index."""
        return self._replicas[replica].blocks

    def num_requests(self, replica: int) -> int:
        """Unfinished requests that were placed on a replica."""
        return self._replicas[replica].num_requests

    # ---- requests

    def place(self, request_id: str, keys: Sequence[int], num_tokens: int) -> Placement:
        """Chooses a replica; `ended` takes the request away again.

        Args:
            keys: labels of its full blocks, in their order.
            num_tokens: to be computed if nothing is cached: of the prompt, and of an answer that goes on.

        Raises:
            LookupError: there is no replica.
        """
        if not self._replicas:
            raise LookupError("there is no replica")
        _, _, _, number, num_cached = min(
            [self._cost(number, each, keys) for number, each in self._replicas.items()]
        )
        self._last = number
        replica = self._replicas[number]
        placed = _Placed(number, keys, max(1, num_tokens - num_cached))
        replica.expected.update(keys)
        replica.num_tokens += placed.num_prompt_tokens
        replica.num_requests += 1
        self._placed[request_id] = placed
        return Placement(number, num_cached)

    def computed(self, request_id: str) -> None:
        """The prompt has been computed: its blocks are in the index by now, or never will be."""
        if (placed := self._placed.get(request_id)) is None:
            return
        replica = self._replicas[placed.replica]
        for key in placed.keys:
            replica.expected[key] -= 1
            if not replica.expected[key]:
                del replica.expected[key]
        replica.num_tokens -= placed.num_prompt_tokens
        placed.keys, placed.num_prompt_tokens = (), 0

    def ended(self, request_id: str) -> None:
        """The request has ended, or was not taken; ignores unknown ids."""
        self.computed(request_id)
        if (placed := self._placed.pop(request_id, None)) is not None:
            self._replicas[placed.replica].num_requests -= 1

    def _cost(
        self, number: int, replica: _Replica, keys: Sequence[int]
    ) -> tuple[int, int, bool, int, int]:
        """Tokens before the first one of a request, less those of its own prompt that every replica computes or finds;
        the number of requests; whether others have their turn first. Behind these: the number of the replica, and the
        tokens of the prompt that it has."""
        num_requests = replica.num_requests + replica.num_requests_of_others
        num_cached = replica.num_found(keys) * self._block_size
        waiting = replica.num_tokens + replica.num_tokens_of_others + DECODE_TOKENS * num_requests
        return waiting - num_cached, num_requests, number <= self._last, number, num_cached
