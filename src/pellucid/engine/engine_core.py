"""The core of an engine: each step is schedule, move, compute, sample, update. It knows tokens, and no text."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pellucid.backends.base import BlocksLostError
from pellucid.backends.ops import ForwardBatch
from pellucid.engine.step_recorder import StepRecord, StepRecorder
from pellucid.execution.model_runner import ModelRunner, StepResult
from pellucid.loaded_model import PartsElsewhere
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import TELLS_TOKENS
from pellucid.observing.ledger import StepTimes
from pellucid.scheduling.request import Request, Taken
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.speculation.speculation import Drafting, Speculation

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
        record: its times and work; None: nobody records steps.
    """

    scheduled: tuple[ScheduledRequest, ...]
    preempted: Sequence[str]
    taken: Mapping[str, Taken]
    ended: Sequence[Request]
    expert_bytes: int
    record: StepRecord | None


@dataclass(eq=False, slots=True)
class StepUnderWay:
    """A step that has begun.

    Attributes:
        number: counts the steps.
        output: what it computes.
        times: of its parts, so far.
        record: of the recorder; None: there is none.
        drafting: what came before it; None: there are no drafts.
        batch: its rows, which other machines may compute already; None: it computes nothing.
        error: why it has to fail; None: it began.
    """

    number: int
    output: SchedulerOutput
    times: StepTimes
    record: StepRecord | None
    drafting: Drafting | None
    batch: ForwardBatch | None = None
    error: Exception | None = None


@dataclass(eq=False)
class EngineCore:
    """Runs steps. An error there ends requests, not the engine.

    A step begins (schedule, move, send to other machines) and finishes (compute, sample, update). Where other machines
    compute first layers, as many steps are under way as there are machines; else one.

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
        self._under_way: deque[StepUnderWay] = deque()
        self._num_steps = 0
        self._last_sampled = float("-inf")  # when the step that finished last had been sampled

    def step(self) -> CoreOutput:
        """Finishes the step that began first; before that, begins as many as there may be. If the forward fails,
        all requests of the step end. If moving blocks fails, or a machine is lost that has a part of them, block
        contents are undefined, and all requests that may have blocks end."""
        if not self._under_way:
            self._begin()
        while len(self._under_way) < self.scheduler.max_steps and self.scheduler.has_work_beside:
            if not self._begin():
                break
        return self._finish(self._under_way.popleft())

    def finish_all(self) -> Iterator[CoreOutput]:
        """Finishes all steps that have begun: from then on any request can be changed."""
        while self._under_way:
            yield self._finish(self._under_way.popleft())

    def take_ended(self) -> Sequence[Request]:
        """The requests that have ended since the last call."""
        ended = self.scheduler.take_ended()
        if ended and self.speculation is not None:
            self.speculation.forget(ended)
        return ended

    def _begin(self) -> bool:
        """Decides on a step, with the blocks that have been read from the prefix store and with drafts; moves blocks as
        scheduled, and has other machines begin with the step. A step that fails here is the next to finish.

        Returns:
            Whether it computes something.
        """
        times = StepTimes(self._clock())
        if self.elsewhere is not None:
            self._notice_loss(self.elsewhere)
        self._num_steps += 1
        self._events.step = self._num_steps
        if self.prefix_store is not None:
            self._finish_reading(self.prefix_store)
        drafting = record = None
        scheduler, recorder = self.scheduler, self._recorder
        if self.speculation is not None:
            scheduler.draft(self.speculation.propose(scheduler.ready))
            drafting = self.speculation.drafting
            times.drafting = drafting.seconds
        output = scheduler.schedule(times.started)
        scheduled = output.scheduled
        self.model_runner.follow(output)
        if recorder is not None:
            left_out = scheduler.ready if len(scheduler.running) > len(scheduled) else ()
            record = recorder.observe_schedule(scheduled, output.num_held_blocks, left_out, times)
        times.scheduled = times.executed = self._clock()
        step = StepUnderWay(self._num_steps, output, times, record, drafting)
        try:
            self._move()
            if scheduled:
                step.batch = self.model_runner.send(scheduled, output.block_tables)
        except Exception as error:
            step.error = error
            self._under_way.appendleft(step)
            return False
        if scheduled or output.errors or not self._under_way:
            self._under_way.append(step)
        else:
            scheduler.withdraw(output)
        return bool(scheduled)

    def _move(self) -> None:
        """Moves blocks as the KV cache manager has listed."""
        try:
            self.model_runner.transfer(self._kv_cache_manager.take_block_ops())
        except BlocksLostError:
            raise
        except Exception as error:
            raise BlocksLostError from error

    def _finish(self, step: StepUnderWay) -> CoreOutput:
        """Runs the forward, unless nothing was scheduled, samples, and updates the requests."""
        output, times, events, result = step.output, step.times, self._events, StepResult()
        events.step = step.number
        try:
            if step.error is not None:
                raise step.error
            if step.batch is not None:
                computed = self.model_runner.execute(output.scheduled, step.batch)
                times.executed = self._clock()
                if self.prefix_store is not None:
                    seconds = times.executed - max(times.scheduled, self._last_sampled)
                    self.prefix_store.note_computed(output.num_tokens, seconds)
                executed = times.executed
                may_observe = executed >= events.observes_from and events.may_observe(executed)
                observed_of = events.observed if may_observe else None
                result = self.model_runner.sample(output.scheduled, computed, observed_of)
        except BlocksLostError as error:
            result = self._lose_blocks(error)
        except Exception as error:
            result = _failed(output, error)
        except BaseException:  # an interrupt: the next step computes the same again
            self.scheduler.withdraw(output)
            raise
        return self._update(step, result)

    def _update(self, step: StepUnderWay, result: StepResult) -> CoreOutput:
        """Has the judge decide on the sampled tokens, and records what the requests take of them."""
        output = step.output
        step.times.sampled = now = self._clock()
        result.errors.update(output.errors)
        taken = self._judge.take(result, now)
        if step.drafting is not None and self.speculation is not None:
            seconds = now - max(step.times.scheduled, self._last_sampled)
            self.speculation.observe(output.scheduled, result, taken, seconds, step.drafting)
        self._last_sampled = now
        events = self._events
        if events.wants_steps:
            if (log := events.step_log) is not None:
                events.told = log.begin(now, step.number, output, taken, result.observations)
            if not events.told & TELLS_TOKENS and events.wants_tokens:
                if self._recorder is not None:
                    self._recorder.observe_tokens(output.scheduled, result, taken, now)
        self.scheduler.update(output, taken, now)
        self._judge.advance_searches(result, now)
        try:
            self._move()  # saves blocks
        except Exception as error:
            # Prompts whose blocks are not saved are computed again. Recurrent states and open keys, which are copied as
            # well, are undefined: the next step ends all requests.
            _log.exception("blocks could not be saved")
            if self._kv_cache_manager.slots is not None:
                self._kv_cache_manager.lost_by = error
        if step.record is not None and self.scheduler.max_steps > 1:
            # Some of the requests that it left out may be in a later step, or have ended.
            ready = {request.request_id for request in self.scheduler.ready}
            step.record.left_out = [each for each in step.record.left_out if each in ready]
        ended = self.take_ended()
        return CoreOutput(
            output.scheduled, output.preempted, taken, ended, result.expert_bytes, step.record
        )

    def _finish_reading(self, prefix_store: "PrefixStore") -> None:
        """Hands the blocks that the prefix store has read to the scheduler. Waits for them briefly if the
        next step has nothing else to compute."""
        wait = MAX_WAIT_SECONDS if self.scheduler.waits_for_reads_alone else 0.0
        for read_id, payloads in prefix_store.take_read(wait):
            self.scheduler.finish_reading(read_id, payloads)

    def _notice_loss(self, elsewhere: PartsElsewhere) -> None:
        """Takes note of machines that were lost since the last step, with their part of all blocks."""
        if (loss := elsewhere.take_loss()) is None:
            return
        if self.scheduler.started_requests():
            self._kv_cache_manager.lost_by = loss
        else:
            self._kv_cache_manager.reset_prefix_cache()

    def _lose_blocks(self, lost: BlocksLostError) -> StepResult:
        """Clears the prefix index, and fails every started request, those of other steps under way as well."""
        broken: dict[str, Exception] = {}
        while self._under_way:
            step = self._under_way.popleft()
            self.scheduler.withdraw(step.output)
            if step.batch is not None:
                self.model_runner.decoder.give_up(step.batch)
            broken |= step.output.errors
        error = lost.__cause__ or lost
        assert isinstance(error, Exception)
        if isinstance(error, BlocksLostError):  # with a machine, which is no fault of this one
            _log.error("blocks are lost: %s", error)
        else:
            _log.error("blocks could not be moved", exc_info=error)
        self._kv_cache_manager.reset_prefix_cache()
        self.scheduler.cancel_reading()
        result = _errors((each.request_id for each in self.scheduler.started_requests()), error)
        result.errors.update(broken)
        return result


def _failed(output: SchedulerOutput, error: Exception) -> StepResult:
    """Fails all requests of a step."""
    _log.error("a step failed, and its requests with it", exc_info=error)
    return _errors(
        (each for part in output.scheduled for each in (part.request_id, *part.samplers)), error
    )


def _errors(request_ids: Iterable[str], error: Exception) -> StepResult:
    return StepResult(errors=dict.fromkeys(request_ids, error))
