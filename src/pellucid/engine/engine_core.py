"""The core of an engine: each step is schedule, move, compute, sample, update. It knows tokens, and no text."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pellucid.backends.base import BlocksLostError
from pellucid.engine.step_recorder import StepRecorder
from pellucid.execution.model_runner import ComputedStep, ModelRunner, StepResult
from pellucid.loaded_model import PartsElsewhere
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Level
from pellucid.observing.ledger import StepTimes
from pellucid.scheduling.request import Request, Taken
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.speculation.speculation import Speculation

if TYPE_CHECKING:  # few engines have one
    from pellucid.execution.prefix_store import PrefixStore

# For blocks from the disk, before the engine looks at new requests and aborts.
MAX_WAIT_SECONDS = 0.1

_log = logging.getLogger(__name__)


class Judge(Protocol):
    """Decides which of the sampled tokens each request takes, and whether it ends with them."""

    def take(self, result: StepResult, now: float) -> Mapping[str, Taken]:
        """What each request takes of a step's tokens, by id. Requests that failed are finished.

        Args:
            now: when the tokens had been sampled.
        """
        ...

    def advance_searches(self, result: StepResult, now: float) -> None:
        """Gives parked beams their tokens, once `Scheduler.update` has recorded the step; without beams, nothing."""
        return


class CoreOutput(NamedTuple):
    """What a step did.

    Attributes:
        scheduled: what it computed.
        preempted: the ids of running requests that had to make room for it.
        taken: by request id, the tokens that it added, in the order of the step.
        ended: the requests that ended with it, or since the step before.
        expert_bytes: bytes of the experts' weights that it read.
    """

    scheduled: tuple[ScheduledRequest, ...]
    preempted: Sequence[str]
    taken: Mapping[str, Taken]
    ended: Sequence[Request]
    expert_bytes: int


@dataclass(eq=False)
class EngineCore:
    """Runs steps. An error there ends requests, not the engine.

    Args:
        scheduler: decides what a step computes.
        model_runner: moves blocks, computes and samples.
        judge: decides which tokens requests take.
        events: tells whether a subscriber wants tokens.
        clock: seconds, monotonic.
        recorder: is told what steps do; None: nobody is.
        prefix_store: reads blocks that are not in memory; None: there is no prefix store.
        speculation: makes drafts; None: there are no drafts.
        elsewhere: other machines that have a part of the model; None: there are none.
    """

    scheduler: Scheduler
    model_runner: ModelRunner
    _judge: Judge
    _events: EventBus
    _clock: Callable[[], float]
    _recorder: StepRecorder | None = None
    prefix_store: "PrefixStore | None" = None
    speculation: Speculation | None = None
    elsewhere: PartsElsewhere | None = None

    def __post_init__(self) -> None:
        self._kv_cache_manager = self.scheduler.kv_cache_manager

    def step(self) -> CoreOutput:
        """Computes one step. If the forward fails, all requests of the step end. If moving blocks fails, or a machine
        is lost that has a part of them, block contents are undefined, and all requests that may have blocks end."""
        times = StepTimes(self._clock())
        if self.elsewhere is not None:
            self._notice_loss(self.elsewhere)
        output = self._schedule(times)
        try:
            self._move()
            computed = self._compute(output, times)
            result = self._sample(output, computed)
        except BlocksLostError as error:
            result = self._lose_blocks(error)
        except Exception as error:
            result = _failed(output, error)
        return self._update(output, result, times)

    def take_ended(self) -> Sequence[Request]:
        """The requests that have ended since the last call."""
        ended = self.scheduler.take_ended()
        if ended and self.speculation is not None:
            self.speculation.forget(ended)
        return ended

    def _schedule(self, times: StepTimes) -> SchedulerOutput:
        """Decides on a step: with the blocks that have been read from the prefix store, and with drafts."""
        self._events.step += 1
        if self.prefix_store is not None:
            self._finish_reading(self.prefix_store)
        if self.speculation is not None:
            self.scheduler.draft(self.speculation.propose(self.scheduler.running))
            times.drafting = self.speculation.drafting_seconds
        output = self.scheduler.schedule(times.started)
        self.model_runner.follow(output)
        if self._recorder is not None:
            held = output.num_held_blocks
            self._recorder.observe_schedule(output.scheduled, held, self.scheduler.running, times)
        times.scheduled = times.executed = self._clock()
        return output

    def _move(self) -> None:
        """Moves blocks as scheduled."""
        try:
            self.model_runner.transfer(self._kv_cache_manager.take_block_ops())
        except BlocksLostError:
            raise
        except Exception as error:
            raise BlocksLostError from error

    def _compute(self, output: SchedulerOutput, times: StepTimes) -> ComputedStep | None:
        """Runs the forward; None: nothing was scheduled."""
        if not output.scheduled:
            return None
        computed = self.model_runner.execute(output.scheduled, output.block_tables)
        times.executed = self._clock()
        if self.prefix_store is not None:
            num_tokens = sum(part.num_scheduled_tokens for part in output.scheduled)
            self.prefix_store.note_computed(num_tokens, times.executed - times.scheduled)
        return computed

    def _sample(self, output: SchedulerOutput, computed: ComputedStep | None) -> StepResult:
        if computed is None:
            return StepResult()
        events = self._events
        observed_of = events.observed if events.active and events.wants(Level.TEXT) else None
        return self.model_runner.sample(output.scheduled, computed, observed_of)

    def _update(self, output: SchedulerOutput, result: StepResult, times: StepTimes) -> CoreOutput:
        """Has the judge decide on the sampled tokens, and records what the requests take of them."""
        times.sampled = now = self._clock()
        result.errors.update(self.scheduler.errors)
        taken = self._judge.take(result, now)
        if self.speculation is not None:
            self.speculation.observe(output.scheduled, result, taken, now - times.scheduled)
        if self._recorder is not None and self._events.active and self._events.wants(Level.TEXT):
            self._recorder.observe_tokens(result, taken, now)
        self.scheduler.update(output, taken, now)
        self._judge.advance_searches(result, now)
        self._save_blocks()
        ended = self.take_ended()
        return CoreOutput(output.scheduled, output.preempted, taken, ended, result.expert_bytes)

    def _finish_reading(self, prefix_store: "PrefixStore") -> None:
        """Hands the blocks that the prefix store has read to the scheduler. Waits for them briefly if the
        next step has nothing else to compute."""
        wait = MAX_WAIT_SECONDS if self.scheduler.waits_for_reads_alone else 0.0
        for read_id, payloads in prefix_store.take_read(wait):
            self.scheduler.finish_reading(read_id, payloads)

    def _save_blocks(self) -> None:
        """Saves the blocks that `Scheduler.update` has listed. An error is logged: prompts whose blocks are not
        saved are computed again. Recurrent states and open keys, which are copied as well, are undefined then: the
        next step ends all requests.
        """
        try:
            self.model_runner.transfer(self._kv_cache_manager.take_block_ops())
        except Exception as error:
            _log.exception("blocks could not be saved")
            if self._kv_cache_manager.slots is not None:
                self._kv_cache_manager.lost_by = error

    def _notice_loss(self, elsewhere: PartsElsewhere) -> None:
        """Takes note of machines that were lost since the last step, with their part of all blocks."""
        if (loss := elsewhere.take_loss()) is None:
            return
        if self.scheduler.started_requests():
            self._kv_cache_manager.lost_by = loss
        else:
            self._kv_cache_manager.reset_prefix_cache()

    def _lose_blocks(self, lost: BlocksLostError) -> StepResult:
        """Clears the prefix index, and fails every started request."""
        error = lost.__cause__ or lost
        assert isinstance(error, Exception)
        if isinstance(error, BlocksLostError):  # with a machine, which is no fault of this one
            _log.error("blocks are lost: %s", error)
        else:
            _log.error("blocks could not be moved", exc_info=error)
        self._kv_cache_manager.reset_prefix_cache()
        self.scheduler.cancel_reading()
        return _errors((each.request_id for each in self.scheduler.started_requests()), error)


def _failed(output: SchedulerOutput, error: Exception) -> StepResult:
    """Fails all requests of a step."""
    _log.error("a step failed, and its requests with it", exc_info=error)
    return _errors(
        (each for part in output.scheduled for each in (part.request_id, *part.samplers)), error
    )


def _errors(request_ids: Iterable[str], error: Exception) -> StepResult:
    return StepResult(errors=dict.fromkeys(request_ids, error))
