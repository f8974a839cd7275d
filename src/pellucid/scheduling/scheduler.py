"""The scheduler: decides what the next step computes, and updates the requests with its results."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import count

from pellucid.inputs.config import PRIORITY_SECONDS
from pellucid.observing.events import Snapshot
from pellucid.scheduling.fair_shares import FairShares
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.offload import BrokenPlanError
from pellucid.scheduling.preemption import Preemption
from pellucid.scheduling.request import FinishReason, Request, RequestStatus, Taken
from pellucid.scheduling.request_queues import RequestHeap, RequestQueues, queue_key
from pellucid.scheduling.scheduler_output import NO_ROWS, ScheduledRequest, SchedulerOutput
from pellucid.scheduling.scheduling_events import EventSink, SchedulingEvents
from pellucid.scheduling.step_plan import StepPlan


class Scheduler:
    """Owns the unfinished requests, and decides what each step computes.

    One rule covers whole prompts, chunks, prefix hits, decode, drafts, recomputation after a preemption and
    the loop without a cache: a request's `num_computed_tokens` has to catch up with its `num_tokens`.

    The scheduler serves the requests of a caller in order of `queue_key`, and between callers the one whose
    turn it is (`FairShares`). No request overtakes the first waiting one. When too few blocks are free, other
    requests give blocks (`Preemption`): each from its tail, and only as many as are needed now.

    Several steps may be under way: scheduled, and not updated yet. What a step under way has stays as it is until the
    step's own update: its requests are in no other step, do not end, and keep their blocks and slots. So the steps
    under way have different requests and write different blocks, and the order in which a machine computes them
    changes nothing.

    Args:
        kv_cache_manager: allocates and releases blocks.
        events: gets the scheduler's events.
        max_num_seqs: most requests in one step.
        max_num_batched_tokens: most tokens in one step, and in all steps under way.
        use_kv_cache: False: a request's blocks are released after every step that samples.
        max_extra_logits: most rows of logits in one step besides one for each request, at least 1: for
            prompt_logprobs and drafts; left out, as many as tokens.
        max_steps: most steps under way.

    Attributes:
        requests: by id, those that have not ended, or have since the last step was scheduled.
        running: in order of key.
        waiting: the requests to be admitted, without those that wait for a sibling's prompt.
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        events: EventSink,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        use_kv_cache: bool = True,
        max_extra_logits: int | None = None,
        max_steps: int = 1,
    ) -> None:
        self.kv_cache_manager = kv_cache_manager
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_extra_logits = max_extra_logits or max_num_batched_tokens
        self.use_kv_cache = use_kv_cache
        self.max_steps = max_steps
        self._shares = FairShares()
        self._queues = RequestQueues(kv_cache_manager, self._shares)
        self.running: Sequence[Request] = self._queues.running
        self.waiting = self._queues.waiting
        self._preemption = Preemption(kv_cache_manager, self._queues, self._shares, max_num_seqs)
        self._sink = events
        self._events = SchedulingEvents(events, kv_cache_manager)
        self._deadlines = RequestHeap()
        self._numbers = count()
        self._arrived: list[Request] = []  # since the last step, if anyone listens
        self.requests: dict[str, Request] = {}
        self._ended: list[Request] = []  # since `take_ended`
        self._ended_since_step: list[Request] = []
        self._under_way: list[SchedulerOutput] = []
        self._waits_for_steps = False  # some request needs blocks or a seat of others
        self._has_drafts = False  # some running request may have some
        # In the last step, because of the limit of blocks to read.
        self._waits_to_read: Request | None = None

    @property
    def has_unfinished_requests(self) -> bool:
        return len(self._queues) > 0

    @property
    def has_work_beside(self) -> bool:
        """Whether there may be requests for another step beside those under way. A request that needs blocks or a seat
        of others waits until no step is under way: then they can give them."""
        return not self._waits_for_steps and (self.waiting.first is not None or len(self.ready) > 0)

    @property
    def ready(self) -> Sequence[Request]:
        """The running requests that no step under way has, in order of key."""
        if not self._under_way:
            return self.running
        taken = self._taken_ids()
        return [request for request in self.running if request.request_id not in taken]

    def add_request(self, request: Request, *siblings: Request) -> None:
        """Queues a request and its siblings: requests with the same prompt, which is computed once.

        Raises:
            ValueError: the request could never fit into the KV cache; nothing was queued.
        """
        self.check_fits(request)
        added = (request, *siblings)
        for each in added:
            self.requests[each.request_id] = each
            # The key never changes, so every request is served in the end, however many with a better
            # priority keep arriving.
            turn = each.arrival_time + each.priority * PRIORITY_SECONDS
            each.queue_key = (turn, next(self._numbers))
            if each.params.max_time is not None:
                self._deadlines.push((each.deadline, each.queue_key[1]), each)
        if self._sink.active:
            self._arrived.append(request)
        if self.use_kv_cache:
            self._queues.add(added)
        else:  # nothing to share: each computes the prompt, and the first alone reports on it
            for each in added:
                if each is not request:
                    each.max_computed_tokens = request.num_prompt_tokens
                self._queues.add([each])

    def check_fits(self, request: Request) -> None:
        """Checks that the KV cache can hold a request that runs alone. From any thread.

        Raises:
            ValueError: the KV cache is too small for the request.
        """
        longest = request.num_prompt_tokens + request.max_tokens - 1
        if not self.kv_cache_manager.fits_alone(longest):
            manager = self.kv_cache_manager
            capacity = manager.needs.longest(manager.block_pool.num_blocks, longest)
            raise ValueError(
                f"request {request.request_id!r} needs up to {longest} positions in the KV cache"
                f" (prompt {request.num_prompt_tokens} + max_tokens {request.max_tokens} - 1), which"
                f" holds {capacity}: lower max_tokens or raise kv_cache_memory"
            )

    def schedule(self, now: float) -> SchedulerOutput:
        """Decides the next step; `now` in seconds on the clock of `Request.arrival_time`."""
        if self._sink.version != self._events.version or self._events.ended:
            self._events.begin_step(now, self._queues)
        self._waits_to_read = None
        self._waits_for_steps = False
        taken = self._taken_ids() if self._under_way else ()
        self._expire(now, taken)
        ended = self._take_ended_ids()
        num_tokens = self.max_num_batched_tokens
        for each in self._under_way:
            num_tokens -= each.num_tokens
        plan = StepPlan(num_tokens, self.max_extra_logits)
        # Decoding requests go first: they take almost nothing of the budget, and each one that is left out
        # loses an output token.
        decodes: list[Request] = []
        others: deque[Request] = deque()
        for request in self._schedulable() if self._under_way else self.running:
            (decodes if request.is_decoding else others).append(request)
        if self.max_steps > 1:
            decodes = self._share_of_step(decodes)
        turn = self._shares.turn
        if self._shares.is_contended:
            others = deque(sorted(others, key=turn))
        plan.draft_budget -= len(decodes)
        if self._has_drafts:
            # Behind a wrong draft, a decode of a model with states has more rows than one.
            plan.draft_budget -= sum([request.num_rewound_tokens for request in decodes])
        for request in decodes:
            if plan.budget and request.status is RequestStatus.RUNNING:
                self._continue(request, plan)

        waiting = self.waiting
        head = waiting.first
        while plan.budget and (others or head is not None):
            if others and (head is None or turn(others[0]) < turn(head)):
                request = others.popleft()
                if request.status is RequestStatus.RUNNING:
                    self._continue(request, plan)
            elif head is not None:
                head = waiting.first if self._admit(head, plan) else None
        if self._sink.active:
            if self._arrived:
                self._emit_queued()
            events = self._events
            if events.block_rows or events.snapshot_rows:
                events.blocks()
        output = SchedulerOutput(
            tuple(plan.scheduled.values()),
            self.kv_cache_manager.block_tables_of(plan.scheduled),
            tuple(plan.started),
            ended,
            tuple([request.request_id for request in plan.preempted]),
            plan.errors,
        )
        self._under_way.append(output)
        return output

    def update(
        self,
        output: SchedulerOutput,
        taken: Mapping[str, Taken],
        now: float,
    ) -> None:
        """Records the results of a step, the one that was scheduled first: appends tokens, rewinds requests to their
        last right draft, publishes newly filled blocks to the prefix index, and finishes requests.

        A request that was sampled and got no token is parked until `reassign` gives it a token. It keeps
        its blocks as long as no other request needs them.

        Args:
            output: the step, as scheduled.
            taken: by request id, what the samplers take: right drafts, and one token more.
            now: seconds, for events.
        """
        self._under_way.remove(output)
        events = self._events if self._sink.active else None
        catching_up = self._events.catching_up if events is not None else ()
        left_out: list[str] = []
        siblings = self._queues.siblings.groups
        for scheduled in output.scheduled:
            request = self.requests[scheduled.request_id]
            samplers = scheduled.samplers
            got_tokens: list[tuple[Request, Taken]] = []
            for request_id in samplers:
                sampler, new = self.requests[request_id], taken.get(request_id)
                if new is not None and sampler.status is not RequestStatus.FINISHED:
                    sampler.output_token_ids += new.token_ids
                    got_tokens.append((sampler, new))
            if request.status is not RequestStatus.FINISHED:
                self._advance(request, scheduled)
                if samplers and not got_tokens:
                    self._queues.park(request)
            else:
                left_out.append(request.request_id)
            if siblings and got_tokens:
                self._part_siblings(request, [self.requests[each] for each in samplers])
            for sampler, new in got_tokens:
                if not self.use_kv_cache:
                    self._forget_computed(sampler)
                if not scheduled.is_decoding and events is not None:
                    if sampler.num_output_tokens == len(new.token_ids):
                        events.first_token(sampler, now)
                if catching_up and sampler.request_id in catching_up:
                    self._events.computed(sampler)
                if new.end is not None:
                    self.finish(sampler, *new.end)
        if events is not None:
            events.step(output, taken, left_out, now)
            if now >= events.stat_due or not (self.running or self.has_unfinished_requests):
                running = len(self.running)
                events.stat(now, running, len(self._queues) - running)

    def withdraw(self, output: SchedulerOutput) -> None:
        """A step is not under way any more, and its requests are as they were before it. Without `update` they have
        to end: some machine may have computed the step."""
        self._under_way.remove(output)

    def snapshot(self, as_of_seq: int, with_tokens: bool = False) -> Snapshot:
        """All unfinished requests and all blocks in use; called between steps.

        Args:
            as_of_seq: the last event that was emitted.
            with_tokens: name the tokens of each request.
        """
        return self._events.snapshot(self._queues, as_of_seq, with_tokens)

    def continue_from(self, request: Request, parent: Request, num_tokens: int) -> int:
        """Makes a new request share the blocks of an unfinished one, as far as both have the same tokens.

        The block with the first different token is shared too: the first request that writes into it gets a
        copy.

        Args:
            request: waits, and has no blocks yet.
            parent: whose blocks are shared.
            num_tokens: how many leading tokens both have.

        Returns:
            How many of these are computed; 0 if nothing can be shared, if `prompt_logprobs` need the logits of all
            positions, or while a step under way has the parent.
        """
        if request.params.prompt_logprobs is not None or parent.request_id in self._taken_ids():
            return 0
        num_shared = min(num_tokens, request.num_tokens - 1)
        num_shared = self.kv_cache_manager.num_forkable(parent, num_shared)
        same_text = request.token_ids(0, num_shared) == parent.token_ids(0, num_shared)
        same_salt = request.cache_salt == parent.cache_salt
        if not (self.use_kv_cache and same_salt and same_text and num_shared > 0):
            return 0
        num_shared = self.kv_cache_manager.fork(parent, request, num_shared)
        request.num_computed_tokens = request.max_computed_tokens = num_shared
        self._queues.note_blocks(request)
        self.report_blocks()
        return num_shared

    def report_blocks(self) -> None:
        """Emits what happened to blocks since the last step, if anyone listens."""
        self._events.blocks()

    @property
    def waits_for_reads_alone(self) -> bool:
        """Whether the next step can compute nothing before the prefix store has read blocks."""
        queues = self._queues
        if not queues.num_reading or queues.running:
            return False
        return queues.waiting.first is self._waits_to_read

    def finish_reading(self, read_id: int, payloads: Sequence[object]) -> None:
        """Returns a request that waited for blocks from the prefix store to the queue.

        Args:
            read_id: of the `Read`.
            payloads: the contents of the blocks, up to the first one that the store does not have.
        """
        offload = self.kv_cache_manager.offload
        assert offload is not None
        request_id = offload.reads.finish_reading(read_id, payloads)
        if request_id is not None:
            self._queues.finish_reading(request_id)

    def cancel_reading(self) -> None:
        """Returns all requests that wait for blocks from the prefix store to the queue, without these blocks."""
        if (offload := self.kv_cache_manager.offload) is not None:
            for read_id in offload.reads.reading_ids():
                self.finish_reading(read_id, ())

    def draft(self, draft_token_ids: Mapping[str, Sequence[int]]) -> None:
        """Gives running requests guesses of their next tokens, for the next step alone.

        Args:
            draft_token_ids: by request id; those of requests that may not have drafts are dropped.
        """
        if not draft_token_ids and not self._has_drafts:
            return
        self._has_drafts = bool(draft_token_ids)
        for request in self.ready:
            drafts = draft_token_ids.get(request.request_id, ())
            request.draft_token_ids = tuple(drafts) if request.may_have_drafts else ()

    def reassign(
        self, requests: Sequence[Request], parents: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        """Gives each request of a group (beams) the text of one of them and one more token.

        Request i continues requests[parents[i]] with token_ids[i]. It shares the computed blocks of this
        parent; a request that later writes into a shared block gets a copy first. The engine calls this
        between `update` and `schedule`, once each parent's last row has been computed: `update` parks
        the requests that got no token. The group does not wait for requests that have lost blocks since
        (these requests and their children compute the blocks again). At the first call the siblings of
        the first request still wait for its prompt: they fork from it (parents[i] = 0). From then on each
        request runs, or waits with the blocks that it holds. Requests of the group that are not in
        `requests` stay or become parked.

        Args:
            requests: unfinished beams, each once.
            parents: [len(requests)] indices into `requests`.
            token_ids: [len(requests)] the tokens to append.
        """
        outputs = [
            [*requests[parent].output_token_ids, token_id]
            for parent, token_id in zip(parents, token_ids, strict=True)
        ]
        num_computed = self.kv_cache_manager.reassign(requests, parents)
        for follower in self._queues.siblings.dissolve(requests):
            if follower not in requests:  # no beam for it yet
                self._queues.park(follower)
        for request, output_token_ids, computed in zip(
            requests, outputs, num_computed, strict=True
        ):
            assert request.is_beam and request.status is not RequestStatus.FINISHED
            request.output_token_ids = output_token_ids
            request.is_introduced = False
            request.num_computed_tokens = computed
            request.max_computed_tokens = max(request.max_computed_tokens, computed)
            if not self.use_kv_cache:
                self._forget_computed(request)
            if request.status is RequestStatus.WAITING:
                self._queues.recall(request, self._num_seats() > 0)
            if self._sink.active and request.status is RequestStatus.RUNNING:
                self._events.computed(request)

    def finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """Ends a request, running or waiting, and frees its blocks. `take_ended` returns it."""
        if request.status is RequestStatus.FINISHED:
            return
        self._queues.leave(request)
        if request.params.max_time is not None:
            self._deadlines.remove(request)
        self.kv_cache_manager.forget(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        self._ended.append(request)
        self._ended_since_step.append(request)
        if self._sink.active:
            self._events.finished(request)

    def take_ended(self) -> tuple[Request, ...]:
        """The requests that have ended since the last call, in order."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def _take_ended_ids(self) -> tuple[str, ...]:
        """The ids of the requests that have ended since the last step; from now on others may have them."""
        ended, self._ended_since_step = self._ended_since_step, []
        for request in ended:
            if self.requests.get(request.request_id) is request:
                del self.requests[request.request_id]
        return tuple([request.request_id for request in ended])

    def started_requests(self) -> list[Request]:
        """The unfinished requests that run or have run: only these may have blocks."""
        return [request for request in self._queues if request.has_started]

    def check_integrity(self) -> None:
        """Asserts that every unfinished request is in exactly one queue, that block owners add up, and that what steps
        under way have is theirs."""
        self._queues.check_integrity()
        assert self._num_seats() >= 0
        parts = [part for output in self._under_way for part in output.scheduled]
        assert len(self._taken_ids()) == sum(
            len({part.request_id, *part.samplers}) for part in parts
        )
        for part in parts:
            request = self.requests[part.request_id]
            assert request.status is RequestStatus.RUNNING
            assert (request.num_computed_tokens, request.num_tokens >= part.end) == (
                part.start,
                True,
            )
            self.kv_cache_manager.check_writable(request, part.end)
        states = self.kv_cache_manager.states
        assert parts or states is None or states.pool.num_free_spares == states.pool.num_spares

    # ---- which requests a step has

    def _continue(self, request: Request, plan: StepPlan) -> None:
        """Schedules a running request, unless it has to make room itself."""
        manager = self.kv_cache_manager
        if request.draft_token_ids:
            self._limit_drafts(request, plan)
        if manager.open_keys is not None:
            self.free_slot(request)
        while not manager.allocate(request, request.num_tokens):
            if request.draft_token_ids:  # no request gives blocks for drafts
                request.draft_token_ids = ()
                continue
            if self._under_way:
                self._waits_for_steps = True
                return
            victim = self._preemption.victim_to_continue(request)
            if victim.status is RequestStatus.RUNNING:
                self._preempt(victim, request, plan)
            if victim is request:
                return
            self._take_blocks(victim, request)
        self._add(request, plan)

    def _limit_drafts(self, request: Request, plan: StepPlan) -> None:
        """Drops drafts of a request that the step has no room for, that are beyond `max_tokens`, or from which
        the request could not be rewound."""
        if not self.kv_cache_manager.can_rewind(request):
            request.draft_token_ids = ()
            return
        num_missing = request.num_known_tokens - request.num_computed_tokens
        room = min(
            plan.draft_budget,
            plan.extra_logits,
            plan.budget - num_missing,
            request.max_tokens - request.num_output_tokens - 1,
        )
        request.draft_token_ids = request.draft_token_ids[: max(0, room)]

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Admits the first waiting request, or has blocks for it read from the prefix store first. Returns False
        if it has to stay first in the queue, so that no other request can be admitted."""
        manager, events = self.kv_cache_manager, self._events
        if self._under_way and request.is_beam and self._has_beams_under_way():
            return False
        if manager.start_reading(request):
            if self._sink.active:
                events.blocked(request, "reading_prefix", 0, ())
            if not manager.is_reading(request):
                self._waits_to_read = request
                return False
            self._queues.read(request)
            return True
        num_seats = self._num_seats() - plan.num_reserved_seats
        if num_seats < 1 and not self._preemption.can_get_seat(request):
            if self._sink.active:
                events.blocked(request, "no_seats", 0, self.running)
            return False
        admission = manager.plan_admission(request)
        victims: list[Request] | None = []
        if num_seats < 1 or admission.num_missing:
            reclaimable = partial(manager.num_reclaimable, admission)
            num_missing = admission.num_missing
            victims = self._preemption.victims_to_admit(
                request, num_missing, num_seats, reclaimable
            )
        if victims is None:
            if self._sink.active:
                events.blocked(request, "no_blocks", admission.num_missing, self.running)
            return False
        if victims and self._under_way:
            self._waits_for_steps = True
            return False
        if request.params.prompt_logprobs is not None and not plan.extra_logits:
            return False  # others have used up the step's rows of logits
        try:
            request.num_computed_tokens = manager.hold(admission)
            for victim in victims:
                if victim.status is RequestStatus.RUNNING:
                    self._preempt(victim, request, plan)
                self._take_blocks(victim, request)
            if manager.open_keys is not None:
                self.free_slot(request)
            num_matched = manager.num_blocks(request) if self._sink.active else 0
            match = manager.admit(admission, explains=self._sink.active)
        except BrokenPlanError as error:
            self._queues.park(request)  # until whoever reads the error ends it
            plan.errors[request.request_id] = error
            return True
        request.num_computed_tokens = match.num_tokens
        if request.num_processed_tokens == 0:
            request.num_cached_tokens = match.num_tokens
        self._queues.admit(request)
        if self._sink.active:
            num_new = manager.num_blocks(request) - num_matched
            events.admitted(request, num_new, match)
        self._add(request, plan)
        return True

    def _emit_queued(self) -> None:
        """Emits, for each waiting request that has arrived since the last step, which requests it waits behind."""
        first = self.waiting.first
        for request in self._arrived:
            if request is not first and request in self.waiting:
                self._events.queued(request, self.waiting.first_of(request.caller), first)
        self._arrived.clear()

    def _add(self, request: Request, plan: StepPlan) -> None:
        """Schedules as many of a request's tokens as the step has room for."""
        start, num_drafts = request.num_computed_tokens, len(request.draft_token_ids)
        num_scheduled = request.num_known_tokens + num_drafts - start
        num_recomputed = min(max(0, request.max_computed_tokens - start), num_scheduled)
        room, has_output = plan.budget, bool(request.output_token_ids)
        wants_prompt = request.params.prompt_logprobs is not None and not has_output
        if wants_prompt:
            # Each row that is not computed again asks for its logits.
            room = min(room, num_recomputed + plan.extra_logits)
            if room == 0:
                return
        manager = self.kv_cache_manager
        states = manager.states
        if states is not None:
            to_snapshot = states.num_tokens_to_snapshot(request, start)
            if to_snapshot is not None:
                room = min(room, to_snapshot)
        if num_drafts:
            manager.checkpoint(request)
        samplers: tuple[str, ...] = (request.request_id,)
        if not request.is_introduced:
            plan.introduce(request)
        if num_scheduled > room:
            num_scheduled, samplers = room, ()
            num_recomputed = min(num_recomputed, room)
        elif self._queues.siblings.groups and not request.is_beam:
            num_seats = self._num_seats() - plan.num_reserved_seats
            for follower in self._queues.siblings.followers(request)[:num_seats]:
                plan.introduce(follower)
                samplers += (follower.request_id,)
        if self._shares.is_contended:
            self._shares.charge(request, num_scheduled - num_recomputed)
        slots = manager.slots
        end, prompt_rows = start + num_scheduled, NO_ROWS
        if wants_prompt:
            # Each position's are given once. The position after the last is a prompt token's too.
            last = min(end, request.num_prompt_tokens - 1)
            prompt_rows = range(num_recomputed, max(num_recomputed, last - start))
        plan.add(
            ScheduledRequest(
                request.request_id,
                start,
                end,
                request.token_ids(start, end),
                num_recomputed,
                num_drafts,
                samplers,
                len(request.prompt_token_ids),
                0 if slots is None else slots.slot(request),
                has_output and not num_recomputed,
                prompt_rows,
            )
        )

    def _num_seats(self) -> int:
        """Free seats, without those for siblings that will be running when the steps under way have been computed."""
        num_free = self.max_num_seqs - len(self.running)
        for output in self._under_way:
            num_free -= sum([len(part.samplers) - 1 for part in output.scheduled if part.samplers])
        return num_free

    # ---- steps under way

    def _taken_ids(self) -> set[str]:
        """The ids of the requests that a step under way has."""
        return {
            request_id
            for output in self._under_way
            for ids in (
                *[(each.request_id, *each.samplers) for each in output.scheduled],
                output.errors,
            )
            for request_id in ids
        }

    def _has_beams_under_way(self) -> bool:
        return any(
            self.requests[part.request_id].is_beam
            for output in self._under_way
            for part in output.scheduled
        )

    def _schedulable(self) -> Sequence[Request]:
        """The running requests that a step beside those under way may have. Beams of a search end together, so while
        one of those has beams, this one may not."""
        if self._has_beams_under_way():
            return [request for request in self.ready if not request.is_beam]
        return self.ready

    def _share_of_step(self, decodes: list[Request]) -> list[Request]:
        """Those of the decoding requests that a step gets where several are under way: as many as each of the others,
        so that all machines have a step to compute. Beams, of which one step alone can have some, are not divided."""
        parts = [part for output in self._under_way for part in output.scheduled]
        num_decodes = len(decodes) + sum([part.is_decoding for part in parts])
        num_beams = sum([request.is_beam for request in decodes])
        num_others = max(0, -(-num_decodes // self.max_steps) - num_beams)
        others = [request for request in decodes if not request.is_beam]
        left_out = {request.request_id for request in others[num_others:]}
        return [request for request in decodes if request.request_id not in left_out]

    # ---- preemption and siblings

    def _preempt(self, request: Request, cause: Request, plan: StepPlan) -> None:
        request.draft_token_ids = ()
        # Blocks that it has not begun to fill hold nothing.
        self.kv_cache_manager.rewind(request, request.num_computed_tokens)
        self._queues.preempt(request)
        request.num_preemptions += 1
        dropped = plan.drop(request)
        if dropped is not None and self._shares.is_contended:
            num_new = dropped.num_scheduled_tokens - dropped.num_recomputed_tokens
            self._shares.charge(request, -num_new)
        plan.preempted.append(request)
        if self._sink.active:
            self._events.preempted(request, cause)

    def _take_blocks(self, victim: Request, request: Request) -> None:
        """Frees the victim's last blocks: as many as `request` needs besides the free ones, or all of them."""
        manager = self.kv_cache_manager
        num_missing = manager.num_missing_blocks(request, request.num_tokens)
        if num_missing == 0:
            return
        num_freed = manager.release_tail(victim, num_missing)
        num_lost = max(0, victim.num_computed_tokens - manager.num_positions(victim))
        victim.num_computed_tokens -= num_lost
        self._queues.note_blocks(victim)
        if self._sink.active:
            swapped = manager.num_swapped_blocks(victim) > 0
            self._events.tail_released(victim, num_lost, num_freed, swapped, request)

    def free_slot(self, request: Request) -> None:
        """Takes the slot of open keys from a waiting request, the last one, if `request` needs one and none is
        free. There are more slots than requests run, so that `request` can run, or be looked at."""
        open_keys = self.kv_cache_manager.open_keys
        if open_keys is None or not open_keys.lacks_slot(request):
            return
        victim = max(filter(open_keys.has_slot, self._queues.holders()), key=queue_key)
        num_before = self.kv_cache_manager.num_blocks(victim)
        num_left = self.kv_cache_manager.take_slot(victim)
        num_lost, victim.num_computed_tokens = victim.num_computed_tokens - num_left, num_left
        self._queues.note_blocks(victim)
        if num_lost and self._sink.active:
            num_freed = num_before - self.kv_cache_manager.num_blocks(victim)
            self._events.tail_released(victim, num_lost, num_freed, False, request)

    def _part_siblings(self, leader: Request, samplers: Sequence[Request]) -> None:
        """Dissolves a group of siblings whose prompt has been computed: those that sampled a token fork from the
        leader and run, the others return to the queue."""
        for follower in self._queues.siblings.dissolve(samplers):
            follower.max_computed_tokens = leader.max_computed_tokens
            if follower in samplers and leader.status is not RequestStatus.FINISHED:
                self.free_slot(follower)
                follower.num_computed_tokens = self.kv_cache_manager.fork(leader, follower)
                self._queues.run(follower)
                if self._sink.active:
                    self._events.forked(follower)
            else:  # on admission it finds the blocks that are still in the prefix cache
                self._queues.queue(follower)

    # ---- results of a step

    def _advance(self, request: Request, scheduled: ScheduledRequest) -> None:
        """Advances a request's counters by the computed tokens, and rewinds the request if a draft was wrong."""
        start, num_computed = scheduled.start, scheduled.end
        request.num_computed_tokens = num_computed
        if scheduled.num_draft_tokens:
            request.draft_token_ids = ()
            num_right = min(num_computed, request.num_known_tokens - 1)
            num_computed = self.kv_cache_manager.rewind(request, num_right)
            request.num_computed_tokens = num_computed
            request.num_rewound_tokens = num_right - num_computed
            if self._sink.active:
                self._events.rewound(request, start)
        elif request.num_rewound_tokens:
            num_left = request.num_rewound_tokens - scheduled.num_scheduled_tokens
            request.num_rewound_tokens = max(0, num_left)
        request.max_computed_tokens = max(request.max_computed_tokens, num_computed)
        request.num_processed_tokens += scheduled.num_scheduled_tokens
        self.kv_cache_manager.seal(request, start)
        if self.kv_cache_manager.has_windows:
            self.kv_cache_manager.free_out_of_window(request)

    def _forget_computed(self, request: Request) -> None:
        self.kv_cache_manager.release(request)
        request.num_computed_tokens = request.max_computed_tokens = request.num_rewound_tokens = 0

    # ---- ends

    def _expire(self, now: float, taken: Collection[str]) -> None:
        """Ends the requests whose time is over, up to the first one that a step under way has: its update ends it."""
        while (request := self._deadlines.first) is not None and now >= request.deadline:
            if request.request_id in taken:
                return
            self.finish(request, FinishReason.LENGTH, "max_time")
