"""The step recorder: ledgers, metrics and events of each step."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid.engine.engine_events import (
    StepCosts,
    request_added,
    request_ledger,
)
from pellucid.execution.model_runner import StepResult
from pellucid.facts import formulas
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import LOGGED, Level
from pellucid.observing.ledger import Ledger, LedgerBook, StepTimes, Work
from pellucid.outputs import RequestOutput
from pellucid.scheduling.request import Request, Taken
from pellucid.scheduling.scheduler_output import ScheduledRequest
from pellucid.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pellucid.engine.token_events import TokenEvents
    from pellucid.observing.logged_events import StepLog

NUM_LAST_STEPS = 32  # that are remembered for a crash report


@dataclass(eq=False, slots=True)
class StepRecord:
    """A step that is being recorded.

    Attributes:
        works: of its requests.
        left_out: the ids of running requests for which it had no room.
    """

    times: StepTimes
    works: list[Work]
    left_out: list[str]


class StepRecorder:
    """Owns the ledgers of unfinished requests, updates their metrics, and emits the events `step`, `tok`,
    `tok.text`, `req.add` and `req.ledger`.

    Args:
        engine_config: the user's settings.
        model_config: for counting operations.
        costs: operations and bytes of a step.
        bytes_per_block: of KV, all layers of a group.
        tokenizer: for the text of tokens.
        bus: gets the events.
        step_log: keeps what plain steps leave; None: there is no native code.

    Attributes:
        last_steps: the times of the latest steps and the work of each request in them; those under way are the last
            ones.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        model_config: ModelConfig,
        costs: StepCosts,
        bytes_per_block: int,
        tokenizer: Tokenizer,
        bus: EventBus,
        step_log: "StepLog | None",
    ) -> None:
        self._use_kv_cache = engine_config.use_kv_cache
        self._costs = costs
        self._bytes_per_block = bytes_per_block
        self._show = tokenizer.token_text
        self._bus = bus
        self._log = step_log
        self._flops = formulas.ForwardFlops(model_config)
        self._ledgers = LedgerBook(self._flops)
        self.last_steps: deque[tuple[StepTimes, list[Work]]] = deque(maxlen=NUM_LAST_STEPS)
        self._requests: dict[str, tuple[Request, RequestOutput]] = {}  # unfinished, by id
        self._last_emitted: float | None = None
        self._token_events: TokenEvents | None = None

    def add(self, request: Request, output: RequestOutput, queued: float) -> None:
        """Records that a request has been queued.

        Args:
            output: of the caller's request, of which this one computes a completion.
            queued: when its prompt had been tokenized.
        """
        self._requests[request.request_id] = request, output
        self._ledgers.open(request.request_id, request.arrival_time, queued)
        if self._bus.active:
            arrive_us = self._bus.to_us(request.arrival_time)
            with_prompt = self._bus.wants(Level.TEXT)
            self._bus.emit(request_added(request, output.request_id, arrive_us, with_prompt))

    def observe_schedule(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        num_held_blocks: Sequence[int],
        left_out: Sequence[Request],
        times: StepTimes,
    ) -> StepRecord:
        """Records which work a step will do for each request.

        Args:
            num_held_blocks: KV blocks that each of the scheduled requests holds.
            left_out: running requests that are in no step under way.
        """
        works: list[Work] = []
        self.last_steps.append((times, works))
        held: dict[str, int] = defaultdict(int)  # bytes of KV blocks by the caller's request
        for scheduled, num_blocks in zip(scheduled_requests, num_held_blocks, strict=True):
            request, request_output = self._requests[scheduled.request_id]
            num_logits = scheduled.num_logits
            work = Work(
                request.request_id,
                scheduled.start,
                scheduled.end,
                # The naive loop computes everything again for every token: it has nothing to lose.
                scheduled.num_recomputed_tokens if self._use_kv_cache else 0,
                num_logits,
                bool(request.output_token_ids),
                self._flops(scheduled.start, scheduled.end, num_logits),
            )
            works.append(work)
            metrics = request_output.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = times.started
                request_output.num_cached_tokens = request.num_cached_tokens
            metrics.num_processed_tokens += scheduled.num_scheduled_tokens
            metrics.flops += work.flops
            if self._use_kv_cache:
                held[request_output.request_id] += num_blocks * self._bytes_per_block
                num_bytes = held[request_output.request_id]
                metrics.kv_cache_bytes = max(metrics.kv_cache_bytes, num_bytes)
        return StepRecord(times, works, [request.request_id for request in left_out])

    def observe_tokens(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        result: StepResult,
        taken: Mapping[str, Taken],
        now: float,
    ) -> None:
        """Emits the tokens of a step that subscribers watch: what was observed of their choice, or their text alone."""
        bus, observed = self._bus, result.observations
        if observed:
            seconds = sum(each.seconds for several in observed.values() for each in several)
            bus.settle_observations(len(observed), seconds)
        if self._token_events is None:  # imported here: few engines are watched
            from pellucid.engine.token_events import TokenEvents

            self._token_events = TokenEvents(self._show, self._bus)
        made, before = self._token_events.of_step, bus.take_told_tokens()
        bus.keep((now, bus.step, made, (scheduled_requests, taken, observed, now, before)))

    def end_step(
        self,
        record: StepRecord,
        scheduled_requests: Sequence[ScheduledRequest],
        preempted: Sequence[str],
        expert_bytes: int,
        now: float,
    ) -> None:
        """Records that the text of a step has been made at `now`. The ledgers of requests that ended with it are
        still open."""
        times, works = record.times, record.works
        times.emitted = now
        self._ledgers.step(times, works, preempted, record.left_out)
        for scheduled in scheduled_requests:
            for sampler in scheduled.samplers[1:]:
                self._ledgers.fork(scheduled.request_id, sampler)
        bus, last = self._bus, self._last_emitted
        if works and bus.wants_steps:
            log = self._log
            if log is not None and log.finish(now, works, times, last, expert_bytes):
                bus.keep(LOGGED)  # `stat` and changes of blocks bound what waits
            else:
                bus.emit_made(now, self._costs.step, works, times, last, expert_bytes)
        self._last_emitted = now

    def close(self, request_id: str, now: float) -> Ledger:
        """Closes the ledger of a request that has ended."""
        del self._requests[request_id]
        ledger = self._ledgers.close(request_id, now)
        if self._bus.active:
            self._bus.emit(request_ledger(request_id, ledger))
        if self._token_events is not None:
            before = self._bus.take_told_tokens()
            self._bus.emit_made(now, self._token_events.forget, request_id, before)
        return ledger
