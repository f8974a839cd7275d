"""The step executor: schedules a step and computes it. An error there ends requests, not the engine."""

import logging
from collections.abc import Callable, Sequence

from pellucid.execution.model_runner import ModelRunner, StepResult
from pellucid.execution.prefix_store import DiskPrefixStore
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Level
from pellucid.observing.ledger import StepTimes
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.speculation.speculation import Speculation

# For blocks from the disk, before the engine looks at new requests and aborts.
MAX_WAIT_SECONDS = 0.1

_log = logging.getLogger(__name__)


class StepExecutor:
    """Asks for drafts, schedules a step, moves blocks, runs the forward, samples, and records the times.
    `LLMEngine` adds text to it; the benchmark's `Session` uses it without text.

    Args:
        model_runner: moves blocks, runs forwards and samples.
        scheduler: schedules steps.
        events: tells whether a subscriber wants tokens.
        clock: seconds, monotonic.
        prefix_store: reads blocks from disk; None: there is no prefix store.
        speculation: makes drafts; None: there are no drafts.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        scheduler: Scheduler,
        events: EventBus,
        clock: Callable[[], float],
        prefix_store: DiskPrefixStore | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self._model_runner = model_runner
        self._scheduler = scheduler
        self._kv_cache_manager = scheduler.kv_cache_manager
        self._events = events
        self._clock = clock
        self._prefix_store = prefix_store
        self._speculation = speculation
        self._copy_error: Exception | None = None  # of recurrent states, after the last step

    def schedule(self, now: float) -> SchedulerOutput:
        """Decides on a step: with the blocks that have been read from the prefix store, and with drafts.

        Args:
            now: seconds, on the scheduler's clock.
        """
        if self._prefix_store is not None:
            self._finish_reading(self._prefix_store)
        if self._speculation is not None:
            self._scheduler.draft(self._speculation.propose(self._scheduler.running))
        return self._scheduler.schedule(now)

    def run(self, scheduled_requests: Sequence[ScheduledRequest], times: StepTimes) -> StepResult:
        """Computes a step.

        Args:
            scheduled_requests: may be empty.
            times: the times at which the parts of the step end are stored here.
        """
        times.scheduled = times.executed = self._clock()
        result = self._move_blocks() or self._forward(scheduled_requests, times)
        times.sampled = self._clock()
        if self._speculation is not None:
            seconds = times.sampled - times.scheduled
            times.drafting = self._speculation.drafting_seconds
            self._speculation.observe(scheduled_requests, result, seconds)
        return result

    def save_blocks(self) -> None:
        """Saves the blocks that `Scheduler.update` has listed. An error is logged: prompts whose blocks are not
        saved are computed again. Recurrent states, which are copied as well, are undefined then: the next step
        ends all requests.
        """
        try:
            self._model_runner.transfer(self._kv_cache_manager.block_ops.take())
        except Exception as error:
            _log.exception("blocks could not be saved")
            if self._kv_cache_manager.states.exist:
                self._copy_error = error

    def _finish_reading(self, prefix_store: DiskPrefixStore) -> None:
        """Hands the blocks that the prefix store has read to the scheduler. Waits for them briefly if the
        next step has nothing else to compute."""
        wait = MAX_WAIT_SECONDS if self._scheduler.waits_for_reads_alone else 0.0
        for read_id, payloads in prefix_store.take_read(wait):
            self._scheduler.finish_reading(read_id, payloads)

    def _move_blocks(self) -> StepResult | None:
        """Moves blocks as scheduled. If that fails, block contents are undefined: clears the prefix
        index and fails every started request."""
        copy_error, self._copy_error = self._copy_error, None
        ops = self._kv_cache_manager.block_ops.take()
        try:
            if copy_error is not None:
                raise copy_error
            self._model_runner.transfer(ops)
        except Exception as error:
            _log.exception("blocks could not be moved")
            self._kv_cache_manager.reset_prefix_cache()
            self._scheduler.cancel_reading()
            started = self._scheduler.started_requests()
            return StepResult(errors={request.request_id: error for request in started})
        return None

    def _forward(
        self, scheduled_requests: Sequence[ScheduledRequest], times: StepTimes
    ) -> StepResult:
        """Runs the forward and samples. If the forward fails, all requests of the step fail."""
        if not scheduled_requests:
            return StepResult()
        try:
            logits = self._model_runner.execute(scheduled_requests)
            times.executed = self._clock()
            watches = self._events.watches if self._events.wants(Level.TOKEN) else None
            return self._model_runner.sample(scheduled_requests, logits, watches)
        except Exception as error:
            _log.exception("a step failed, and its requests with it")
            return StepResult(
                errors={
                    request.request_id: error
                    for scheduled in scheduled_requests
                    for request in (scheduled.request, *scheduled.samplers)
                }
            )
