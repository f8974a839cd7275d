"""The scheduler's events, for the subscribers of the event bus."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from pellucid.observing import events
from pellucid.scheduling.block import Block
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.prefix_index import PrefixMatch
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler_output import SchedulerOutput

STAT_SECONDS = 0.5  # between two events `stat`
MAX_NAMED = 8  # requests in `blocked_by`, those first that will be preempted first

Finish = Literal["eos", "length", "stop", "cancel", "error"]


class EventSink(Protocol):
    @property
    def active(self) -> bool:
        """Whether anyone listens; asked before an event is made."""
        ...

    def wants(self, level: events.Level) -> bool:
        """Whether anyone listens to events of `level`."""
        ...

    def emit(self, event: events.Event) -> None:
        """Hands an event to everyone who wants it."""
        ...

    def take_spent(self) -> float:
        """Seconds that events have cost since the last call."""
        ...


class SchedulingEvents:
    """Emits the scheduler's events. The scheduler calls it only if the sink is active.

    Args:
        sink: gets the events.
        kv_cache_manager: owns the blocks that events describe.

    Attributes:
        is_recording: whether there were subscribers at the last step.
    """

    def __init__(self, sink: EventSink, kv_cache_manager: KVCacheManager) -> None:
        self._sink = sink
        self.is_recording = False
        self._manager = kv_cache_manager
        self._last_blocked: tuple[str, str] | None = None
        self._states: dict[str, events.RequestState] = {}  # as told; they begin with "waiting"
        # What `stat` counts, since then.
        self._stat_since: float | None = None
        self._num_prompt_positions = self._num_output_tokens = 0
        self._num_admitted_tokens = self._num_found_tokens = 0
        self._first_token_seconds: list[float] = []
        self._gaps: list[float] = []  # seconds between tokens
        self._token_times: dict[str, float] = {}  # of the last token of each request

    def snapshot(
        self, requests: Iterable[Request], as_of_seq: int, with_tokens: bool = False
    ) -> events.Snapshot:
        """All requests and blocks now. If steps are watched, later events report every change of a block."""
        pool = self._manager.block_pool
        self._record(self._sink.wants(events.Level.STEP))
        self.is_recording = True
        blocked, reason = self._last_blocked or (None, None)
        return events.Snapshot(
            as_of_seq=as_of_seq,
            requests=tuple(
                events.SnapshotRequest(
                    req=request.request_id,
                    state=self._states.setdefault(request.request_id, _state(request)),
                    prompt_tok=request.num_prompt_tokens,
                    out_tok=request.num_output_tokens,
                    computed_tok=request.num_computed_tokens,
                    prio=request.priority,
                    blocks=tables[0],
                    tables=tables if len(tables) > 1 else None,
                    reason=reason if request.request_id == blocked else None,
                    max_new_tok=request.max_tokens,
                    params=sampling_summary(request),
                    prompt_ids=request.prompt_token_ids if with_tokens else None,
                    output_ids=tuple(request.output_token_ids) if with_tokens else None,
                    num=request.number,
                    caller=request.caller or None,
                )
                for request in requests
                for tables in [self._manager.block_tables(request)]
            ),
            blocks=tuple(
                (block.block_id, block.ref_count, _short_hash(block))
                for block in pool.blocks_in_use()
            ),
            **self._block_counts(),
        )

    def stat(
        self,
        output: SchedulerOutput,
        num_output_tokens: int,
        now: float,
        running: int,
        waiting: int,
    ) -> None:
        """Records the results of a step. Emits `stat` twice a second, and when no request is left.

        Args:
            num_output_tokens: output tokens of the step.
            now: seconds.
            running, waiting: requests.
        """
        if self._stat_since is None:  # the first subscriber came within the step
            return
        for scheduled in output.scheduled:
            if scheduled.start >= scheduled.num_prompt_tokens:
                continue
            first = scheduled.start + scheduled.num_recomputed_tokens
            end = min(scheduled.end, scheduled.num_prompt_tokens)
            self._num_prompt_positions += max(0, end - first)
        self._num_output_tokens += num_output_tokens
        seconds = now - self._stat_since
        if seconds <= 0 or (seconds < STAT_SECONDS and running + waiting):
            return
        admitted = self._num_admitted_tokens
        self._sink.emit(
            events.Stat(
                running=running,
                waiting=waiting,
                in_tok_s=self._num_prompt_positions / seconds,
                out_tok_s=self._num_output_tokens / seconds,
                dur_us=round(seconds * 1e6),
                hit_frac=self._num_found_tokens / admitted if admitted else None,
                obs_frac=min(1.0, self._sink.take_spent() / seconds),
                ttft_us=_percentiles(self._first_token_seconds),
                itl_us=_percentiles(self._gaps),
                **self._block_counts(),
            )
        )
        self._begin_stat(now)

    def _begin_stat(self, now: float) -> None:
        self._stat_since = now
        self._num_prompt_positions = self._num_output_tokens = 0
        self._num_admitted_tokens = self._num_found_tokens = 0
        self._first_token_seconds.clear()
        self._gaps.clear()

    def _block_counts(self) -> dict[str, int]:
        pool = self._manager.block_pool
        return {
            "used": pool.num_used_blocks,
            "cached": pool.num_cached_blocks,
            "free": pool.num_free_blocks - pool.num_cached_blocks,
        }

    def begin_step(self, now: float) -> None:
        """Begins or ends recording, depending on whether there are subscribers. Call it if there are, or were."""
        self._record(self._sink.wants(events.Level.STEP))
        self.is_recording = self._sink.active
        if not self._sink.active:
            self._states.clear()
            self._token_times.clear()
            self._stat_since = None
        elif self._stat_since is None:
            self._sink.take_spent()
            self._begin_stat(now)

    def _record(self, active: bool) -> None:
        """Begins or ends recording what happens to blocks and to snapshots of recurrent states."""
        self._manager.block_pool.log.active = active
        if self._manager.states is not None:
            self._manager.states.pool.log.active = active

    def blocks(self) -> None:
        """What happened to blocks, and to snapshots of recurrent states, since the last call."""
        pool = self._manager.block_pool
        if pool.log:
            rows, groups = pool.log.take()
            self._sink.emit(
                events.BlockOps(
                    ops=rows,
                    waste_tok=self._manager.num_wasted_slots(),
                    groups=groups if any(groups) else None,
                    **self._block_counts(),
                )
            )
        if self._manager.states is None:
            return
        snapshots = self._manager.states.pool
        if snapshots.log:
            ops, _ = snapshots.log.take()
            used, slots = snapshots.num_used_snapshots, snapshots.num_snapshots
            self._sink.emit(events.StateOps(ops=ops, used=used, slots=slots))

    def queued(
        self, request: Request, first_of_caller: Request | None, first: Request | None
    ) -> None:
        """A request waits behind another one of its caller, or it is the first of its caller and waits behind
        another caller's."""
        is_own = first_of_caller is not request
        ahead = first_of_caller if is_own else first
        assert ahead is not None
        reason = "behind_own_requests" if is_own else "behind_other_callers"
        self._tell(request, reason, blocked_by=(ahead.request_id,))

    def blocked(
        self, request: Request, reason: str, num_missing: int, running: Sequence[Request]
    ) -> None:
        """The first waiting request cannot be admitted; emitted once as long as the reason stays the same."""
        if self._last_blocked == (request.request_id, reason):
            return
        self._last_blocked = (request.request_id, reason)
        self._tell(
            request,
            reason,
            num_missing,
            tuple(other.request_id for other in running[: -MAX_NAMED - 1 : -1]),
        )

    def admitted(self, request: Request, num_new: int, match: PrefixMatch) -> None:
        """A request takes part in the step; `num_new` blocks were allocated for it."""
        miss = match.miss
        self._num_admitted_tokens += request.num_tokens
        self._num_found_tokens += match.num_tokens
        self._sink.emit(
            events.PrefixMatched(
                req=request.request_id,
                hit_tok=match.num_tokens,
                hit_blocks=match.num_tokens // self._manager.block_size,
                miss_at_tok=miss.at_token if miss else None,
                miss_why=miss.reason.value if miss else None,
                near_req=miss.near_request_id if miss else None,
                diff_at_tok=miss.differs_at_token if miss else None,
                diff_ids=miss.differing_token_ids if miss else None,
                evicted_ago=miss.num_evicted_since if miss else None,
                snapshot_at_tok=miss.snapshot_at_token if miss else None,
                loaded_tok=match.num_loaded_tokens or None,
            )
        )
        self._tell(request, "admitted", num_new)

    def forked(self, request: Request) -> None:
        """A request has forked from the sibling that computed its prompt."""
        self._tell(request, "forked")

    def sampled(self, request: Request, num_tokens: int, now: float) -> None:
        """A step has appended `num_tokens` tokens to a request."""
        if (before := self._token_times.get(request.request_id)) is not None:
            self._gaps.append(now - before)
        elif request.num_output_tokens == num_tokens:
            self._first_token_seconds.append(now - request.arrival_time)
        self._token_times[request.request_id] = now

    def computed(self, request: Request) -> None:
        """A request has caught up with its tokens and got one more."""
        if self._states.get(request.request_id) != "decode":
            self._tell(request, "computed")

    def preempted(self, request: Request, cause: Request) -> None:
        self._tell(request, "preempted", blocked_by=(cause.request_id,))

    def tail_released(
        self, victim: Request, num_lost_tokens: int, num_freed: int, swapped: bool, cause: Request
    ) -> None:
        """A request that does not run has given back blocks for another one."""
        self._sink.emit(
            events.Preempted(
                req=victim.request_id,
                mode="swap" if swapped else "recompute",
                lost_tok=num_lost_tokens,
                freed_blocks=num_freed,
                cause_req=cause.request_id,
                n_preempt=victim.num_preemptions,
            )
        )

    def finished(self, request: Request) -> None:
        finish = _finish(request)
        text = isinstance(request.stop_reason, str) and finish in ("length", "error")
        self._tell(request, str(request.stop_reason) if text else finish, finish=finish)
        del self._states[request.request_id]
        self._token_times.pop(request.request_id, None)

    def _tell(
        self,
        request: Request,
        reason: str,
        need_blocks: int | None = None,
        blocked_by: tuple[str, ...] | None = None,
        finish: Finish | None = None,
    ) -> None:
        before = self._states.get(request.request_id, "waiting")
        self._states[request.request_id] = after = _state(request)
        self._sink.emit(
            events.RequestStateChanged(
                req=request.request_id,
                from_=before,
                to=after,
                reason=reason,
                need_blocks=need_blocks,
                free_blocks=self._manager.block_pool.num_free_blocks,
                blocked_by=blocked_by,
                finish=finish,
            )
        )


def sampling_summary(request: Request) -> events.SamplingSummary:
    params = request.params
    return events.SamplingSummary(
        temp=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        rep=params.repetition_penalty,
        seed=request.seed,
    )


def _percentiles(seconds: Sequence[float]) -> events.Percentiles | None:
    """By nearest rank; None: there are no times."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    ranks = (-(-len(ordered) * percent // 100) - 1 for percent in (50, 95, 99))
    return events.Percentiles(*(max(0, round(ordered[rank] * 1e6)) for rank in ranks))


def _state(request: Request) -> events.RequestState:
    match request.finish_reason:
        case FinishReason.ABORT:
            return "cancelled"
        case FinishReason.ERROR:
            return "failed"
        case FinishReason.STOP | FinishReason.LENGTH:
            return "done"
    if request.status is RequestStatus.RUNNING:
        return "decode" if request.is_decoding else "prefill"
    return "preempted" if request.num_preemptions else "waiting"


def _short_hash(block: Block) -> str | None:
    return None if block.key is None else block.key.block_hash.hex()[:16]


def _finish(request: Request) -> Finish:
    match request.finish_reason:
        case FinishReason.ABORT:
            return "cancel"
        case FinishReason.ERROR:
            return "error"
        case FinishReason.LENGTH:
            return "length"
    return "eos" if request.stop_reason in request.eos_token_ids else "stop"
