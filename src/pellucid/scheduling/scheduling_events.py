"""The scheduler's events, for the subscribers of the event bus."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from pellucid.observing import events
from pellucid.scheduling.block import Block
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.prefix_index import PrefixMatch
from pellucid.scheduling.request import FinishReason, Request, RequestStatus, Taken
from pellucid.scheduling.scheduler_output import SchedulerOutput
from pellucid.scheduling.state_pool import StatePool

if TYPE_CHECKING:
    from pellucid.observing.logged_events import StepLog
    from pellucid.scheduling.step_events import BlockChanges, StepEvents

STAT_SECONDS = 0.5  # between two events `stat`
MAX_NAMED = 8  # requests in `blocked_by`, those first that will be preempted first

Counter: TypeAlias = Literal["log", "events"]  # the log of steps, or `StepEvents`
Finish = Literal["eos", "length", "stop", "cancel", "error"]


class EventSink(Protocol):
    @property
    def version(self) -> int:
        """Another number whenever those who listen, or what they want, have changed."""
        ...

    @property
    def active(self) -> bool:
        """Whether anyone listens; asked before an event is made."""
        ...

    @property
    def step(self) -> int:
        """Number of the current step."""
        ...

    @property
    def step_log(self) -> "StepLog | None":
        """Takes what plain steps leave; None: nobody would read it, or there is none."""
        ...

    @property
    def told(self) -> int:
        """What `step_log` tells of the current step."""
        ...

    def split_step(self, with_blocks: bool = True) -> None:
        """What comes next stands between the tokens of a plain step and its end.

        Args:
            with_blocks: whether the log of steps tells its blocks.
        """
        ...

    def emit_changes(self, changes: "BlockChanges") -> None:
        """Emits `kv` of changes between plain steps."""
        ...

    def take_counted_tokens(self) -> events.Tokens | None:
        """The latest tokens, if the log of steps has counted them and nobody has asked."""
        ...

    def take_logged_counts(self) -> tuple[int, list[int]]:
        """The tokens of plain steps since the last call, and the microseconds since the token before each."""
        ...

    @property
    def keep(self) -> Callable[[events.Note | None], None]:
        """As `emit_made`, for all that a step emits but the last; takes (now, step, make, arguments)."""
        ...

    def wants(self, level: events.Level) -> bool:
        """Whether anyone listens to events of `level`."""
        ...

    def emit(self, event: events.Event) -> None:
        """Hands an event to everyone who wants it."""
        ...

    def emit_made(
        self, now: float | None, make: Callable[..., Iterable[events.Event]], *arguments: object
    ) -> None:
        """Hands out the events that `make(*arguments)` makes, perhaps later, on another thread.

        Args:
            now: seconds; None: the sink looks at its clock.
        """
        ...

    def flush(self) -> None:
        """Makes and hands out what waits."""
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
        version: of the sink, at the last step.
        ended: the ids of requests that have ended since then.
        catching_up: the ids of requests that were told to be in another state than "decode".
        block_rows, snapshot_rows: what has happened to blocks, and to snapshots of recurrent states, since it was told.
        stat_due: when the next `stat` is, in seconds.
    """

    def __init__(self, sink: EventSink, kv_cache_manager: KVCacheManager) -> None:
        self._sink = sink
        self.version = 0  # before anyone has listened
        self._manager = kv_cache_manager
        self._log = kv_cache_manager.block_pool.log
        self.block_rows: Sequence[object] = self._log.rows
        self._last_blocked: tuple[str, str] | None = None
        self._states: dict[str, events.RequestState] = {}  # as told; they begin with "waiting"
        self.catching_up: set[str] = set()
        self.ended: list[str] = []
        self._stat_since: float | None = None
        self.stat_due = 0.0
        self._records_blocks = False
        # Who knows how many slots of used blocks hold no token, and can go on counting by the rows of the log; None:
        # nobody.
        self._counter: Counter | None = None
        states = kv_cache_manager.states
        self.snapshot_rows: Sequence[object] = () if states is None else states.pool.log.rows

    @cached_property
    def _steps(self) -> "StepEvents":
        from pellucid.scheduling.step_events import StepEvents  # few engines are watched

        return StepEvents(self._manager.block_size)

    def snapshot(
        self, requests: Iterable[Request], as_of_seq: int, with_tokens: bool = False
    ) -> events.Snapshot:
        """All requests and blocks now. If steps are watched, later events report every change of a block."""
        pool = self._manager.block_pool
        self._record(self._sink.wants(events.Level.STEP))
        blocked, reason = self._last_blocked or (None, None)
        used, cached, free = self._block_counts()
        return events.Snapshot(
            as_of_seq=as_of_seq,
            requests=tuple(
                events.SnapshotRequest(
                    req=request.request_id,
                    state=self._known_state(request),
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
            used=used,
            cached=cached,
            free=free,
        )

    def step(
        self,
        output: SchedulerOutput,
        taken: Mapping[str, Taken],
        left_out: Collection[str],
        now: float,
    ) -> None:
        """Keeps what a step has changed, for the events `kv` and `stat`.

        Args:
            taken: by request id, the tokens that the step has given it.
            left_out: the ids of its requests that ended before its results were recorded.
            now: when they were sampled, seconds.
        """
        is_told = self._sink.told & events.TELLS_BLOCKS and self._counter == "log"
        if is_told and not (self.block_rows or self.snapshot_rows or self.ended or left_out):
            return
        if self._stat_since is None:  # the first subscriber came within the step
            return
        sink, log, ended = self._sink, self._sink.step_log, self.ended
        self.ended = []
        if log is not None and not (ended or left_out) and log.is_plain:
            log.add_blocks(self._take_changes("log"))
        else:
            sink.split_step(with_blocks=False)
            before = sink.take_counted_tokens()
            if not self._records_blocks:
                counted = (output, taken, ended, now, before)
                sink.keep((now, sink.step, self._steps.count, counted))
                return
            told = (output, taken, ended, now, before, left_out, self._take_changes("events"))
            sink.keep((now, sink.step, self._steps.step, told))
        if self._manager.states is not None:
            self._snapshots(self._manager.states.pool)

    def stat(self, now: float, running: int, waiting: int) -> None:
        """Emits `stat`: call it at `stat_due`, and when no request is left.

        Args:
            now: seconds.
            running, waiting: requests.
        """
        if self._stat_since is None or (seconds := now - self._stat_since) <= 0:
            return
        counts, spent = self._block_counts(), self._sink.take_spent()
        logged = self._sink.take_logged_counts()
        self._sink.split_step()
        self._sink.emit_made(
            now, self._steps.stat, running, waiting, counts, seconds, spent, logged
        )
        self._sink.flush()
        self._begin_stat(now)

    def _begin_stat(self, now: float) -> None:
        self._stat_since = now
        self.stat_due = now + STAT_SECONDS

    def _block_counts(self) -> tuple[int, int, int]:
        """Used, cached and free blocks."""
        pool = self._manager.block_pool
        num_cached = pool.num_cached_blocks
        return pool.num_used_blocks, num_cached, pool.num_free_blocks - num_cached

    def begin_step(self, now: float, requests: Iterable[Request]) -> None:
        """Begins or ends recording, depending on whether there are subscribers. Call it if others listen than at the
        last step, or requests have ended between steps.

        Args:
            requests: that are unfinished.
        """
        self.version = self._sink.version
        if self._records_blocks is not self._sink.wants(events.Level.STEP):
            self._record(not self._records_blocks)
        if not self._sink.active:
            self._states.clear()
            self.catching_up.clear()
            self.ended.clear()
            self._stat_since = None
        elif self._stat_since is None:
            for request in requests:
                self._known_state(request)
            self._sink.emit_made(now, self._steps.begin)
            self._sink.take_logged_counts()
            self._sink.take_spent()
            self._begin_stat(now)
        elif self.ended:
            self._sink.emit_made(
                now, self._steps.forget, self.ended, self._sink.take_counted_tokens()
            )
            self.ended = []

    def _record(self, active: bool) -> None:
        """Begins or ends recording what happens to blocks and to snapshots of recurrent states."""
        if active is not self._records_blocks:
            self._count_with(None)
        self._records_blocks = active
        self._log.active = active
        if self._manager.states is not None:
            self._manager.states.pool.log.active = active

    def blocks(self) -> None:
        """Keeps what happened to blocks, and to snapshots of recurrent states, since the last call."""
        if self._log.rows:
            is_logged = self._counter == "log" and self._sink.step_log is not None
            changes = self._take_changes("log" if is_logged else "events")
            assert changes is not None
            if is_logged:
                self._sink.emit_changes(changes)
            else:
                self._sink.emit_made(None, self._steps.blocks, changes)
        if self._manager.states is not None:
            self._snapshots(self._manager.states.pool)

    def _snapshots(self, snapshots: StatePool) -> None:
        if snapshots.log.rows:
            ops, _ = snapshots.log.take()
            used, slots = snapshots.num_used_snapshots, snapshots.num_snapshots
            self._sink.split_step()
            self._sink.emit(events.StateOps(ops=ops, used=used, slots=slots))

    def _take_changes(self, counter: Counter) -> "BlockChanges | None":
        """What happened to blocks beside slots that were filled; None: nothing.

        Args:
            counter: who is told of it.
        """
        is_known = self._counter == counter
        if is_known and not self._log.rows:
            return None
        rows, groups = self._log.take()
        self._count_with(counter if self._manager.open_keys is None else None)
        counts, count_wasted = self._block_counts(), self._manager.num_wasted_slots
        return self._steps.changes(rows, groups, counts, count_wasted, is_known)

    def _count_with(self, counter: Counter | None) -> None:
        self._counter = counter
        if (log := self._sink.step_log) is not None:
            log.follow_blocks(counter == "log")

    def rewound(self, request: Request, start: int) -> None:
        """A step has computed a request's positions from `start` on, and given back those behind a wrong draft."""
        if self._records_blocks:
            self._manager.log_fill(request, start)
            self._count_with(None)

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
        self._sink.emit_made(None, self._steps.admitted, request.num_tokens, match.num_tokens)

    def forked(self, request: Request) -> None:
        """A request has forked from the sibling that computed its prompt."""
        self._tell(request, "forked")

    def computed(self, request: Request) -> None:
        """A request has caught up with its tokens and got one more."""
        if self._states.get(request.request_id) != "decode":
            self._tell(request, "computed")

    def first_token(self, request: Request, now: float) -> None:
        """A request has its first token."""
        if self._stat_since is not None:
            self._sink.emit_made(now, self._steps.first_token, now - request.arrival_time)

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
        self.catching_up.discard(request.request_id)
        self.ended.append(request.request_id)

    def _tell(
        self,
        request: Request,
        reason: str,
        need_blocks: int | None = None,
        blocked_by: tuple[str, ...] | None = None,
        finish: Finish | None = None,
    ) -> None:
        before = self._states.get(request.request_id, "waiting")
        after = self._note_state(request)
        self._count_with(None)  # whatever has changed its state
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

    def _note_state(self, request: Request) -> events.RequestState:
        self._states[request.request_id] = state = _state(request)
        if state == "decode":
            self.catching_up.discard(request.request_id)
        else:
            self.catching_up.add(request.request_id)
        return state

    def _known_state(self, request: Request) -> events.RequestState:
        """The state that subscribers know; of those who have come since it began, the present one."""
        return self._states.get(request.request_id) or self._note_state(request)


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
