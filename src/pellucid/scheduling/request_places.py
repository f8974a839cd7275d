"""Where each unfinished request is."""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence

from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Request, RequestStatus
from pellucid.scheduling.request_heap import Key, RequestHeap
from pellucid.scheduling.siblings import Siblings


def queue_key(request: Request) -> Key:
    return request.queue_key


class RequestPlaces:
    """Moves requests between their places, and knows who holds blocks without running.

    An unfinished request is in one place: `running`, `waiting`, following a sibling that computes
    its prompt, or parked until its group is reassigned. All but the first have the status WAITING.

    Args:
        kv_cache_manager: says who has blocks.

    Attributes:
        running: in order of key: the last one is preempted first.
        waiting: the smallest key is admitted first.
        siblings: who computes a prompt for whom.
    """

    def __init__(self, kv_cache_manager: KVCacheManager) -> None:
        self.running: list[Request] = []
        self.waiting = RequestHeap()
        self.siblings = Siblings()
        self._kv_cache_manager = kv_cache_manager
        self._parked: dict[str, Request] = {}
        self._holders: dict[str, Request] = {}
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        """All of them; in no order."""
        placed = (*self.running, *self.waiting, *self._parked.values())
        for request in placed:
            yield request
            yield from self.siblings.followers(request)

    # ---- coming and going

    def add(self, requests: Sequence[Request]) -> None:
        """Takes in requests with the same prompt: the first waits, the others follow it."""
        self._num_requests += len(requests)
        self.siblings.add(requests)
        self.queue(requests[0])

    def leave(self, request: Request) -> None:
        """Takes a request out of its place. If others followed it, the next one leads them."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._parked.pop(request.request_id, None)
        self._holders.pop(request.request_id, None)
        if (new_leader := self.siblings.leave(request)) is not None:
            new_leader.num_computed_once = request.num_computed_once
            self.queue(new_leader)
        self._num_requests -= 1

    # ---- from one place to another

    def queue(self, request: Request) -> None:
        """To `waiting`, from nowhere, from following or from being parked."""
        self.waiting.push(request.queue_key, request)
        self._note_blocks(request)

    def admit(self, request: Request) -> None:
        """From `waiting` to `running`."""
        self.waiting.remove(request)
        self.run(request)

    def run(self, request: Request) -> None:
        """To `running`, from following or from being parked."""
        self._holders.pop(request.request_id, None)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=queue_key)

    def preempt(self, request: Request) -> None:
        """From `running` to `waiting`, with its blocks."""
        self.running.remove(request)
        request.status = RequestStatus.WAITING
        self.queue(request)

    def park(self, request: Request) -> None:
        """From `running`, or from following, to where it waits for its group."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        request.status = RequestStatus.WAITING
        self._parked[request.request_id] = request
        self._note_blocks(request)

    def recall(self, request: Request, has_seat: bool) -> None:
        """From wherever it waits, with the blocks that it has now, to `running` or `waiting`."""
        self._parked.pop(request.request_id, None)
        if request in self.waiting:
            self.waiting.remove(request)
        if has_seat:
            self.run(request)
        else:
            self.queue(request)

    # ---- who holds blocks without running

    def holders(self) -> Iterable[Request]:
        return self._holders.values()

    def latest_holder(self) -> Request | None:
        return max(self._holders.values(), key=queue_key, default=None)

    def gave_back(self, request: Request) -> None:
        """A request that does not run has fewer blocks than before."""
        self._note_blocks(request)

    def _note_blocks(self, request: Request) -> None:
        if self._kv_cache_manager.num_blocks(request):
            self._holders[request.request_id] = request
        else:
            self._holders.pop(request.request_id, None)

    def check_integrity(self) -> None:
        """Every request is in one place, and every block with those who own it."""
        manager = self._kv_cache_manager
        manager.check_integrity()
        assert self.running == sorted(self.running, key=queue_key)
        for request in self.running:
            assert request.status is RequestStatus.RUNNING
            assert request not in self.waiting and request.request_id not in self._holders
            assert request.num_computed_tokens < request.num_tokens
        for request in (*self.waiting, *self._parked.values()):
            assert request.status is RequestStatus.WAITING
            num_slots = manager.num_blocks(request) * manager.block_size
            assert (num_slots > 0) == (request.request_id in self._holders)
            assert 0 <= num_slots - request.num_computed_tokens < manager.block_size
        everyone = list(self)
        assert all(manager.num_blocks(r) == 0 for r in everyone if self.siblings.follows(r))
        assert len(set(everyone)) == len(everyone) == len(self)
