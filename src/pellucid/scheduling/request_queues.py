"""The request queues: running requests, waiting requests, siblings, and parked requests that hold blocks."""

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import attrgetter

from pellucid.scheduling.fair_shares import FairShares
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Key, Request, RequestStatus


class RequestHeap:
    """A heap of requests, the smallest key first.

    Removing a request from the middle is O(1) on average: `remove` only marks its entry as invalid. Invalid
    entries are dropped when they come to the top, or all at once when they are the majority.
    """

    def __init__(self) -> None:
        # The number makes entries of one request different and keeps requests from being compared.
        self._entries: list[tuple[Key, int, Request]] = []
        self._valid: dict[str, int] = {}  # request_id -> number of its entry
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._valid

    def __iter__(self) -> Iterator[Request]:
        """In order."""
        return (entry[2] for entry in sorted(self._entries) if self._is_valid(entry))

    @property
    def first(self) -> Request | None:
        while self._entries and not self._is_valid(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0][2] if self._entries else None

    def push(self, key: Key, request: Request) -> None:
        assert request.request_id not in self._valid
        number = self._valid[request.request_id] = next(self._numbers)
        heapq.heappush(self._entries, (key, number, request))

    def remove(self, request: Request) -> None:
        del self._valid[request.request_id]
        if len(self._entries) > 2 * len(self._valid) + 8:
            self._entries = [entry for entry in self._entries if self._is_valid(entry)]
            heapq.heapify(self._entries)

    def _is_valid(self, entry: tuple[Key, int, Request]) -> bool:
        return self._valid.get(entry[2].request_id) == entry[1]


class WaitingRequests:
    """The waiting requests: each caller's in order of key, and between callers the one whose turn it is.

    Args:
        shares: decides which caller's request comes next.
    """

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._lines: dict[str, RequestHeap] = {}  # by caller; none is empty

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, request: Request) -> bool:
        return request.caller in self._lines and request in self._lines[request.caller]

    def __iter__(self) -> Iterator[Request]:
        """Caller by caller, each caller's in order."""
        for line in self._lines.values():
            yield from line

    @property
    def callers(self) -> list[str]:
        """Those whose requests wait."""
        return [*self._lines]

    @property
    def first(self) -> Request | None:
        if len(self._lines) == 1:
            return next(iter(self._lines.values())).first
        firsts = [line.first for line in self._lines.values()]
        return min(
            (each for each in firsts if each is not None), key=self._shares.turn, default=None
        )

    def first_of(self, caller: str) -> Request | None:
        line = self._lines.get(caller)
        return None if line is None else line.first

    def push(self, key: Key, request: Request) -> None:
        self._lines.setdefault(request.caller, RequestHeap()).push(key, request)

    def remove(self, request: Request) -> None:
        line = self._lines[request.caller]
        line.remove(request)
        if not len(line):
            del self._lines[request.caller]


class Siblings:
    """Groups of requests with the same prompt. The first of a group leads it: only the leader is scheduled.

    A group lasts until its prompt is computed. If the leader ends before that, the next request leads.

    Attributes:
        groups: by the id of each request; two or more each.
    """

    def __init__(self) -> None:
        self.groups: dict[str, list[Request]] = {}

    def add(self, requests: Sequence[Request]) -> None:
        """Makes a group of two or more requests; the first one leads it."""
        group = [*requests]
        for request in requests:
            self.groups[request.request_id] = group

    def followers(self, leader: Request) -> list[Request]:
        group = self.groups.get(leader.request_id)
        return group[1:] if group is not None and group[0] is leader else []

    def follows(self, request: Request) -> bool:
        """Whether a request waits for its leader."""
        group = self.groups.get(request.request_id)
        return group is not None and group[0] is not request

    def leave(self, request: Request) -> Request | None:
        """Takes a request out of its group. Returns the new leader, if the request led others."""
        group = self.groups.pop(request.request_id, None)
        if group is None:
            return None
        led = group[0] is request
        group.remove(request)
        new_leader = group[0] if led else None
        if len(group) == 1:
            del self.groups[group[0].request_id]
        return new_leader

    def dissolve(self, requests: Iterable[Request]) -> list[Request]:
        """Ends the group of any of these requests. Returns those that were still following in it."""
        for request in requests:
            if (group := self.groups.get(request.request_id)) is not None:
                for sibling in group:
                    del self.groups[sibling.request_id]
                return group[1:]
        return []


queue_key = attrgetter("queue_key")  # which of a caller's requests comes first


class RequestQueues:
    """Moves requests between the queues, and knows which requests hold blocks without running.

    An unfinished request is in one place: it is running, waiting, or reading blocks from the prefix
    store; it follows a sibling that computes its prompt; or it is parked, until it is given a token. All
    but the first have the status WAITING.

    Args:
        kv_cache_manager: says who has blocks.
        shares: says whose turn it is.

    Attributes:
        running: in order of key.
        waiting: the first one is admitted first.
        siblings: which request computes the prompt of which others.
    """

    def __init__(self, kv_cache_manager: KVCacheManager, shares: FairShares) -> None:
        self.running: list[Request] = []
        self.waiting = WaitingRequests(shares)
        self._shares = shares
        self.siblings = Siblings()
        self._kv_cache_manager = kv_cache_manager
        self._reading: dict[str, Request] = {}
        self._parked: dict[str, Request] = {}
        self._holders: dict[str, Request] = {}
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        """All of them; in no order."""
        not_running = (*self.waiting, *self._reading.values(), *self._parked.values())
        for request in (*self.running, *not_running):
            yield request
            yield from self.siblings.followers(request)

    # ---- arrival and end

    def add(self, requests: Sequence[Request]) -> None:
        """Adds requests with the same prompt: the first waits, the others follow it."""
        for request in requests:
            self._shares.join(request)
        if self._shares.is_contended:
            caller, waiting = requests[0].caller, self.waiting.callers
            if caller not in waiting:
                self._shares.begin_to_wait(caller, waiting)
        self._num_requests += len(requests)
        if len(requests) > 1:
            self.siblings.add(requests)
        self.queue(requests[0])

    def leave(self, request: Request) -> None:
        """Removes a request that ends. If others followed it, the next one leads them."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._reading.pop(request.request_id, None)
        self._parked.pop(request.request_id, None)
        self._holders.pop(request.request_id, None)
        if self.siblings.groups and (new_leader := self.siblings.leave(request)) is not None:
            new_leader.max_computed_tokens = request.max_computed_tokens
            self.queue(new_leader)
        self._shares.leave(request)
        self._num_requests -= 1

    # ---- moves

    def queue(self, request: Request) -> None:
        """Moves a new, following or parked request to `waiting`."""
        self.waiting.push(request.queue_key, request)
        self.note_blocks(request)

    def read(self, request: Request) -> None:
        """Moves a request out of `waiting` until the prefix store has read its blocks. It keeps its blocks."""
        self.waiting.remove(request)
        self._reading[request.request_id] = request

    def finish_reading(self, request_id: str) -> None:
        """Moves a request whose blocks have been read back to `waiting`."""
        self.queue(self._reading.pop(request_id))

    @property
    def num_reading(self) -> int:
        """Requests that wait for blocks from the prefix store."""
        return len(self._reading)

    def admit(self, request: Request) -> None:
        """Moves a request from `waiting` to `running`."""
        self.waiting.remove(request)
        self.run(request)

    def run(self, request: Request) -> None:
        """Moves a following or parked request to `running`."""
        self._holders.pop(request.request_id, None)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=queue_key)

    def preempt(self, request: Request) -> None:
        """Moves a request from `running` to `waiting`. It keeps its blocks."""
        self.running.remove(request)
        request.status = RequestStatus.WAITING
        self.queue(request)

    def park(self, request: Request) -> None:
        """Parks a request that runs, follows or waits until it is given a token, or ended."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.status = RequestStatus.WAITING
        self._parked[request.request_id] = request
        self.note_blocks(request)

    def recall(self, request: Request, has_seat: bool) -> None:
        """Moves a parked or waiting request to `running` or `waiting`. It keeps its blocks."""
        self._parked.pop(request.request_id, None)
        if request in self.waiting:
            self.waiting.remove(request)
        if has_seat:
            self.run(request)
        else:
            self.queue(request)

    # ---- holders: requests with blocks that do not run

    def holders(self) -> Iterable[Request]:
        return self._holders.values()

    def note_blocks(self, request: Request) -> None:
        """Notes whether a request that does not run holds blocks."""
        if self._kv_cache_manager.num_blocks(request):
            self._holders[request.request_id] = request
        else:
            self._holders.pop(request.request_id, None)

    def check_integrity(self) -> None:
        """Asserts that every request is in one queue, and every block in the tables of its owners."""
        manager = self._kv_cache_manager
        manager.check_integrity()
        assert self.running == sorted(self.running, key=queue_key)
        for request in self.running:
            assert request.status is RequestStatus.RUNNING
            assert request not in self.waiting and request.request_id not in self._holders
            assert request.num_computed_tokens < request.num_tokens
        for request in (*self.waiting, *self._reading.values(), *self._parked.values()):
            assert request.status is RequestStatus.WAITING
            num_slots = manager.num_positions(request)
            assert (num_slots > 0) == (request.request_id in self._holders)
            assert 0 <= num_slots - request.num_computed_tokens < manager.block_size
        everyone = list(self)
        assert self._holders.keys() <= {request.request_id for request in everyone}
        assert all(manager.num_blocks(r) == 0 for r in everyone if self.siblings.follows(r))
        assert len(set(everyone)) == len(everyone) == len(self)
