"""Fair shares between callers: whose requests come next, by how many tokens each caller has had computed."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from pellucid.scheduling.request import Key, Request

Turn: TypeAlias = tuple[float, Key]


@dataclass(slots=True)
class _Account:
    """A caller with unfinished requests.

    Attributes:
        virtual_time: the tokens that were computed for it, divided by its weight.
    """

    virtual_time: float
    weight: float
    num_unfinished: int = 0


class FairShares:
    """Counts the tokens that each caller has had computed, divided by its weight: its virtual time.

    The caller with the smallest virtual time comes first. So callers that always have requests waiting get
    tokens in proportion to their weights, whatever the sizes and numbers of their requests are (Sheng et al.,
    Fairness in Serving Large Language Models, OSDI 2024). What a caller does not use is no credit for later:
    when it begins to wait, its virtual time is raised to that of the callers that wait already.

    Attributes:
        is_contended: whether there are several callers. Otherwise nothing is counted.
    """

    def __init__(self) -> None:
        self.is_contended = False
        self._accounts: dict[str, _Account] = {}

    def join(self, request: Request) -> None:
        """A request has arrived."""
        account = self._accounts.get(request.caller)
        if account is None:
            account = self._accounts[request.caller] = _Account(0.0, request.caller_weight)
            self.is_contended = len(self._accounts) > 1
        account.weight = request.caller_weight
        account.num_unfinished += 1

    def leave(self, request: Request) -> None:
        """A request has ended. A caller without requests is forgotten."""
        account = self._accounts[request.caller]
        account.num_unfinished -= 1
        if not account.num_unfinished:
            del self._accounts[request.caller]
            self.is_contended = len(self._accounts) > 1

    def begin_to_wait(self, caller: str, waiting: Collection[str]) -> None:
        """A caller that had no waiting request has one now.

        Args:
            caller: whose virtual time is raised to the smallest of `waiting`, or to the largest of all
                callers if `waiting` is empty.
            waiting: the other callers with requests that wait.
        """
        own, accounts = self._accounts[caller], self._accounts
        if waiting:
            floor = min(accounts[other].virtual_time for other in waiting)
        else:
            floor = max(account.virtual_time for account in accounts.values())
        own.virtual_time = max(own.virtual_time, floor)

    def charge(self, request: Request, num_tokens: int) -> None:
        """Tokens of a request are going to be computed; a negative number: they are not, after all."""
        account = self._accounts[request.caller]
        account.virtual_time += num_tokens / account.weight

    def virtual_time(self, caller: str) -> float:
        return self._accounts[caller].virtual_time

    def weight(self, caller: str) -> float:
        return self._accounts[caller].weight

    def turn(self, request: Request) -> Turn:
        """A key for sorting, the smallest is served first: the caller's virtual time, then the request's key."""
        return self._accounts[request.caller].virtual_time, request.queue_key


class Claims:
    """The seats and the blocks of the KV cache that each caller has now.

    A caller's claim is the larger of its shares of the two, divided by its weight (Ghodsi et al., Dominant
    Resource Fairness, NSDI 2011).

    Args:
        shares: knows the weights.
        num_seats: of all requests that run.
        num_blocks: of the pool.
    """

    def __init__(self, shares: FairShares, num_seats: int, num_blocks: int) -> None:
        self._shares = shares
        self._num_seats = num_seats
        self._num_blocks = num_blocks
        self._seats: Counter[str] = Counter()
        self._blocks: Counter[str] = Counter()

    def add(self, caller: str, num_seats: int, num_blocks: int) -> None:
        self._seats[caller] += num_seats
        self._blocks[caller] += num_blocks

    def of(self, caller: str, more_seats: int = 0, more_blocks: int = 0) -> float:
        """The claim of a caller, if it had more seats and blocks than it has."""
        seats = (self._seats[caller] + more_seats) / self._num_seats
        blocks = (self._blocks[caller] + more_blocks) / self._num_blocks
        return max(seats, blocks) / self._shares.weight(caller)
