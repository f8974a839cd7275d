"""The policy: what the next step computes, and what its results mean for each request."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import FinishReason, Request, RequestStatus


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: its tokens at start .. start + num_scheduled_tokens - 1."""

    request: Request
    start: int
    num_scheduled_tokens: int
    samples: bool  # the share reaches the request's last token, whose logits give the next one
    block_ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.num_scheduled_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """A step, as plain data."""

    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...]
    expired: tuple[Request, ...]  # finished now because their max_time was over

    @property
    def num_tokens(self) -> int:
        return sum(share.num_scheduled_tokens for share in self.scheduled)


class Scheduler:
    """Owns the requests. There is no prefill or decode here: each request's `num_computed_tokens`
    has to catch up with its `num_tokens`, and that one rule covers whole prompts, chunks, prefix
    hits, decode, recomputation after preemption and the loop without a cache.

    Args:
        kv_cache_manager: gives and takes blocks.
        max_num_seqs: requests in one step.
        max_num_batched_tokens: tokens in one step.
        use_kv_cache: False forgets what was computed after every sampled token.
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        use_kv_cache: bool = True,
    ) -> None:
        self.kv_cache_manager = kv_cache_manager
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.use_kv_cache = use_kv_cache
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of admission: the last one is preempted first
        self._with_deadline: list[Request] = []

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Queues a request.

        Raises:
            ValueError: it could never fit into the KV cache.
        """
        longest = request.num_prompt_tokens + request.max_tokens - 1
        if not self.kv_cache_manager.fits_alone(longest):
            capacity = (
                self.kv_cache_manager.block_pool.num_blocks * self.kv_cache_manager.block_size
            )
            raise ValueError(
                f"request {request.request_id!r} needs up to {longest} positions in the KV cache"
                f" (prompt {request.num_prompt_tokens} + max_tokens {request.max_tokens} - 1), which"
                f" holds {capacity}: lower max_tokens or raise kv_cache_memory"
            )
        self.waiting.append(request)
        if request.params.max_time is not None:
            self._with_deadline.append(request)

    def schedule(self, now: float) -> SchedulerOutput:
        """Decides the next step; `now` in seconds on the clock of `Request.arrival_time`."""
        expired = [request for request in self._with_deadline if now >= request.deadline]
        for request in expired:
            self.finish(request, FinishReason.LENGTH, "max_time")

        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        budget = self.max_num_batched_tokens

        for request in tuple(self.running):
            if budget == 0 or request.status is not RequestStatus.RUNNING:
                break  # those behind a preempted one were preempted before it
            while not self.kv_cache_manager.allocate(request, request.num_tokens):
                victim = self.running[-1]
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            if request.status is RequestStatus.RUNNING:
                scheduled.append(self._share(request, budget))
                budget -= scheduled[-1].num_scheduled_tokens

        # Admitting after a preemption would take the blocks that were just made free.
        while self.waiting and not preempted and budget and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            num_cached_tokens = self.kv_cache_manager.match_prefix(request)
            if not self.kv_cache_manager.allocate(request, request.num_tokens):
                self.kv_cache_manager.release(request)
                break
            self.waiting.popleft()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = num_cached_tokens
            if request.num_processed_tokens == 0:
                request.num_cached_tokens = num_cached_tokens
            scheduled.append(self._share(request, budget))
            budget -= scheduled[-1].num_scheduled_tokens

        return SchedulerOutput(tuple(scheduled), tuple(preempted), tuple(expired))

    def update(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, int], now: float
    ) -> None:
        """Books what a step computed.

        Args:
            output: the step, as scheduled.
            sampled_token_ids: by request id, one token for each share that `samples` and has not
                been finished since (by an abort or an error).
            now: seconds, for `max_time`.
        """
        for share in output.scheduled:
            request = share.request
            if request.status is RequestStatus.FINISHED:
                continue
            request.num_computed_tokens = share.end
            request.num_processed_tokens += share.num_scheduled_tokens
            self.kv_cache_manager.seal(request, share.start)
            if not share.samples:
                continue
            if not self.use_kv_cache:
                self._forget_computed(request)
            request.output_token_ids.append(sampled_token_ids[request.request_id])
            self._finish_if_done(request, now)

    def finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """Ends a request, wherever it is; its blocks are free at once."""
        if request.status is RequestStatus.FINISHED:
            return
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        if request.params.max_time is not None:
            self._with_deadline.remove(request)
        self.kv_cache_manager.forget(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason

    def _share(self, request: Request, budget: int) -> ScheduledRequest:
        start = request.num_computed_tokens
        num_missing = request.num_tokens - start
        return ScheduledRequest(
            request,
            start,
            num_scheduled_tokens=min(num_missing, budget),
            samples=num_missing <= budget,
            block_ids=self.kv_cache_manager.block_ids(request),
        )

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._forget_computed(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _forget_computed(self, request: Request) -> None:
        self.kv_cache_manager.release(request)
        request.num_computed_tokens = 0

    def _finish_if_done(self, request: Request, now: float) -> None:
        params, token_id = request.params, request.output_token_ids[-1]
        if token_id in request.stop_token_ids:
            self.finish(request, FinishReason.STOP, token_id)
        elif request.num_output_tokens == request.max_tokens:
            limit = "max_tokens" if request.max_tokens == params.max_tokens else "context_length"
            self.finish(request, FinishReason.LENGTH, limit)
        elif now >= request.deadline:
            self.finish(request, FinishReason.LENGTH, "max_time")
