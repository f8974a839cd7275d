"""Preemption: decides which requests give their blocks, or their seat, to another request."""

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.scheduling.fair_shares import Claims, FairShares
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Key, Request, RequestStatus
from pellucid.scheduling.request_queues import RequestQueues


@dataclass(eq=False)
class Preemption:
    """Decides who gives blocks when too few are free, and who gives a seat.

    Waiting requests that still hold blocks give them first, then running requests. The request with the latest key
    gives first; if there are several callers, a request of the caller with the largest claim (`Claims`).

    Args:
        kv_cache_manager: says how many blocks requests have and need.
        queues: has the requests.
        shares: of the callers.
        max_num_seqs: seats.
    """

    _kv_cache_manager: KVCacheManager
    _queues: RequestQueues
    _shares: FairShares
    _max_num_seqs: int

    def _claims(self) -> Claims | None:
        """What each caller has; None if there is one caller."""
        if not self._shares.is_contended:
            return None
        manager = self._kv_cache_manager
        claims = Claims(self._shares, self._max_num_seqs, manager.block_pool.num_blocks)
        for request in self._queues.running:
            claims.add(request.caller, 1, manager.num_blocks(request))
        for request in self._queues.holders():
            claims.add(request.caller, 0, manager.num_blocks(request))
        return claims

    def victim_to_continue(self, request: Request) -> Request:
        """The request that gives blocks to a running one; it may be that one itself."""
        rank = _rank(self._claims())
        running = self._queues.running
        victim = max(self._queues.holders(), key=rank, default=None)
        alone = len(running) == 1
        if victim is None or (rank(victim) < rank(request) and not alone):
            return max(running, key=rank)
        return victim

    def victims_to_admit(
        self,
        request: Request,
        num_missing: int,
        num_seats: int,
        num_reclaimable: Callable[[Request], int],
    ) -> list[Request] | None:
        """The requests that give blocks or a seat to the first waiting request; None if it has to wait.

        Args:
            num_missing: free blocks that its admission needs besides those there are.
            num_seats: that are free; where none is, `can_get_seat`.
            num_reclaimable: how many blocks it could be given if a victim gave all of its own back.
        """
        claims = self._claims()
        all_running = self._queues.running
        alone = not all_running  # then the whole pool is there for it, and it fits
        holders = [
            holder
            for holder in self._queues.holders()
            if holder is not request and (alone or self._gives(holder, request, claims))
        ]
        running = [victim for victim in all_running if self._gives(victim, request, claims)]
        rank = _rank(claims)
        victims: list[Request] = []
        for victim in (*sorted(holders, key=rank)[::-1], *sorted(running, key=rank)[::-1]):
            if num_seats > 0 and num_missing <= 0:
                break
            if victim.status is RequestStatus.RUNNING:
                num_seats += 1
            victims.append(victim)
            num_missing -= num_reclaimable(victim)
        return victims if alone or num_missing <= 0 else None

    def can_get_seat(self, request: Request) -> bool:
        """Whether a running request would give its seat to the first waiting one."""
        running, claims = self._queues.running, self._claims()
        if claims is None:
            return self._gives(running[-1], request, None)
        return any(self._gives(victim, request, claims) for victim in running)

    def _gives(self, victim: Request, request: Request, claims: Claims | None) -> bool:
        """Whether a request gives its blocks, and its seat if it runs, to the first waiting request.

        Among requests of one caller, those with later keys give, and running ones only if their priority is worse.
        A request of another caller gives if this caller's claim is larger than the claim that the waiting
        request's caller will have. If it runs, it gives only to a request that has not started, and only after it
        has been computed in a step, so that no requests preempt each other in turn; and only if its caller's
        virtual time is not the smaller one.
        """
        is_running = victim.status is RequestStatus.RUNNING
        if claims is None or victim.caller == request.caller:
            is_worse = not is_running or request.priority < victim.priority
            return is_worse and request.queue_key < victim.queue_key
        if is_running:
            time_of = self._shares.virtual_time
            if request.has_started or not victim.num_processed_tokens:
                return False
            if time_of(victim.caller) < time_of(request.caller):
                return False
        num_blocks = self._kv_cache_manager.num_more_blocks(request)
        return claims.of(victim.caller) > claims.of(request.caller, 1, num_blocks)


def _rank(claims: Claims | None) -> Callable[[Request], Key | tuple[float, Key]]:
    """A key for sorting requests: the request with the largest key gives blocks first."""
    if claims is None:
        return lambda request: request.queue_key
    return lambda request: (claims.of(request.caller), request.queue_key)
