"""The engine: schedule, execute, update, emit."""

import logging
import time
from collections.abc import Callable, Sequence

from pellucid.beam_search_params import BeamSearchParams, RequestParams
from pellucid.config import EngineConfig, ModelConfig
from pellucid.engine_events import Ceilings, StepCosts, hello, telling_of_progress
from pellucid.event_bus import EventBus
from pellucid.events import Level
from pellucid.execution.model_runner import ModelRunner, StepResult
from pellucid.execution.sampler import Sampler
from pellucid.kv_storage import make_kv_storage
from pellucid.ledger import StepTimes
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.parameters import Progress
from pellucid.output_processor import Answer, OutputProcessor, failure
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestMetrics, RequestOutput
from pellucid.prompts import EncodedPrompt, Prompt
from pellucid.request_maker import RequestMaker
from pellucid.sampling_params import SamplingParams
from pellucid.scheduling.beam_group import BeamGroup
from pellucid.scheduling.beam_search import Hypothesis
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest
from pellucid.step_recorder import StepRecorder
from pellucid.step_weights import step_weights

_log = logging.getLogger(__name__)


class LLMEngine:
    """Runs requests to their ends, many at a time, one step at a time.

    Constructs its parts and hands them what they own; keeps only the answers under way.

    Args:
        config: the user's knobs.
        model: weights, tokenizer and facts of a checkpoint, on a backend.
        clock: seconds, monotonic.
        bus: carries events, stamped by the same clock; left out, one is made.
        ceilings: what the machine does at best, for predictions in events; None: nobody measured it.

    Attributes:
        events: the bus: `engine.events.subscribe(print, Level.STEP)`.

    Raises:
        ValueError: a knob asks for what the model, the backend or the memory cannot give.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        clock: Callable[[], float] = time.monotonic,
        bus: EventBus | None = None,
        ceilings: Ceilings | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.model_config = model.config
        self.tokenizer = model.tokenizer
        self.clock = clock
        self.events = EventBus(clock) if bus is None else bus
        self.max_model_len = _max_model_len(config, model.config)
        storage = make_kv_storage(config, model, self.max_model_len, self.events)
        self.memory_plan = storage.plan
        self._close_storage = storage.close
        self.scheduler = Scheduler(
            KVCacheManager(
                BlockPool(storage.plan.num_blocks),
                config.block_size,
                # Without the cache nothing that was computed may be found again.
                config.enable_prefix_caching and config.use_kv_cache,
                storage.prefix_store,
                storage.num_swap_slots,
            ),
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.use_kv_cache,
            self.events,
        )
        self.model_runner = ModelRunner(
            model.decoder,
            storage.kv_cache,
            config.block_size,
            Sampler(),
            storage.transfer,
        )
        self.output_processor = OutputProcessor(model.tokenizer)
        self._request_maker = RequestMaker(model.config, model.tokenizer, self.max_model_len)
        weights = step_weights(config, model.config, model.backend, model.decoder)
        self._recorder = StepRecorder(
            config,
            model.config,
            StepCosts(model.config, weights, storage.plan, config.max_num_batched_tokens, ceilings),
            storage.plan.bytes_per_block,
            model.tokenizer,
            self.events,
        )
        self.events.introduce(hello(config, model, weights, storage.plan, ceilings))
        self._outputs: dict[str, RequestOutput] = {}  # of requests under way
        self._answers: dict[str, Answer] = {}  # by the id of the scheduler's request
        self._ended: list[Answer] = []  # whose ledgers are still open
        self._num_best: dict[str, int] = {}  # by request: answers to keep where more are made
        self._num_requests = 0

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        on_progress: Progress | None = None,
        bus: EventBus | None = None,
    ) -> "LLMEngine":
        """Loads what `config` names.

        Args:
            on_progress: called with (bytes read, bytes in all) while weights load.
            bus: the engine's, if somebody wants to hear of the loading; by `time.monotonic`.
        """
        bus = EventBus(time.monotonic) if bus is None else bus
        model = load_model(config, telling_of_progress(bus, config.model, on_progress))
        return cls(config, model, bus=bus)

    def close(self) -> None:
        """Writes what is still on its way to `prefix_cache_dir`, and saves no more there.

        A process that ends without it writes that as well; it only does not wait for it here.
        """
        self._close_storage()

    @property
    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The part of `add_request` that takes time and touches no request: from any thread.

        Args:
            prompt: text, token ids, or a conversation.

        Raises:
            ValueError: the prompt cannot be served.
        """
        return self._request_maker.encode(prompt, self.clock)

    def check_request(self, prompt: EncodedPrompt, params: RequestParams, request_id: str) -> None:
        """Refuses what `add_request` would refuse, and queues nothing. From any thread.

        Args:
            request_id: what an error calls it.

        Raises:
            ValueError: the prompt or a parameter cannot be served.
        """
        for request in self._request_maker.make(request_id, prompt, params):
            self.scheduler.check_fits(request)

    def add_request(
        self,
        prompt: Prompt | EncodedPrompt,
        params: RequestParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Queues a request.

        Args:
            prompt: text, token ids, or a conversation; or what `encode` made of it.
            params: how to choose, or how to search, and when to stop.
            request_id: unique among requests under way; left out, one is made.
            priority: lower is sooner; each level counts as having arrived 10 s earlier.
            cache_salt: only requests with the same one share cached prompts; up to 256 characters.

        Returns:
            The request's output, which fills as `step` is called.

        Raises:
            ValueError: the prompt or a parameter cannot be served; nothing was queued.
        """
        if request_id is None:
            request_id = f"request-{self._num_requests}"
        if request_id in self._outputs:
            raise ValueError(f"request_id={request_id!r}: is under way already")
        encoded = prompt if isinstance(prompt, EncodedPrompt) else self.encode(prompt)
        requests = self._request_maker.make(request_id, encoded, params, priority, cache_salt)
        output = RequestOutput(
            request_id=request_id,
            prompt=encoded.text,
            prompt_token_ids=list(encoded.token_ids),
            seed=requests[0].seed,
            outputs=[CompletionOutput(index) for index in range(params.num_results)],
            metrics=RequestMetrics(arrival_time=encoded.arrival_time),
        )
        self.scheduler.add_request(*requests)
        beams = None
        if isinstance(params, BeamSearchParams):
            beams = BeamGroup.starting(params, requests)
        for request in requests:
            answer = self.output_processor.start(request, output, beams)
            self._answers[request.request_id] = answer
            self._recorder.add(request, request_id, encoded.encoded_time)
        if isinstance(params, SamplingParams) and params.ranks:
            self._num_best[request_id] = params.n
        self._outputs[request_id] = output
        self._num_requests += 1
        return output

    def step(self) -> list[CompletionDelta]:
        """Computes one step; what it added to each answer, in the order of the step.

        A request that fails on its way ends with finish_reason "error" and does not touch the others;
        if the forward itself fails, all requests of the step do; if blocks cannot be moved, all that
        may have any. The engine goes on.
        """
        times = self._recorder.begin_step(self.clock())
        output = self.scheduler.schedule(times.started)
        self._recorder.book(output, self.scheduler.running, self._answers)
        result = self._execute(output.scheduled, times)
        for request_id, error in result.errors.items():
            for member in self._answers[request_id].members:
                self.scheduler.finish(member, FinishReason.ERROR, failure(error))
        self._recorder.observe_tokens(result, self._answers, times.sampled)
        token_ids = {key: sampled.token_id for key, sampled in result.sampled.items()}
        self.scheduler.update(output, token_ids, times.sampled)
        found = self._advance_searches(result, times.sampled)
        self._save_blocks()
        deltas = [
            self._emit(request, result, times.sampled)
            for share in output.scheduled
            for request in share.samplers or (share.request,)
            if not request.waits_for_group
        ]
        deltas += found
        failed = (self._answers.get(request_id) for request_id in result.errors)
        deltas += [self._end(answer.request) for answer in failed if answer is not None]
        deltas += [self._end(request) for request in output.expired]
        times.emitted = self.clock()
        self._recorder.end_step(output)
        return self._close_ended([delta for delta in deltas if delta is not None], times.emitted)

    def abort(self, request_id: str) -> list[CompletionDelta]:
        """Ends a request at once, whatever it is doing; unknown and finished ids are ignored.

        Returns:
            The ends of its answers that were under way.
        """
        output = self._outputs.get(request_id)
        if output is None:
            return []
        deltas = []
        for completion in output.outputs:
            if completion.finish_reason is None:
                answer = self._answers[f"{request_id}/{completion.index}"]
                for member in answer.members:
                    self.scheduler.finish(member, FinishReason.ABORT)
                deltas += (
                    [self._end(answer.request)]
                    if answer.beams is None
                    else self._end_search(answer.beams)
                )
        return self._close_ended(deltas, self.clock())

    def _execute(self, scheduled: Sequence[ScheduledRequest], times: StepTimes) -> StepResult:
        """Computes a step and notes when its parts were done."""
        times.scheduled = times.executed = self.clock()
        result = self._move_blocks() or self._forward(scheduled, times)
        times.sampled = self.clock()
        return result

    def _move_blocks(self) -> StepResult | None:
        """If blocks cannot be moved as scheduled, nobody knows what they hold: none may be found again,
        and whoever has computed anything has failed."""
        try:
            self.model_runner.transfer(self.scheduler.kv_cache_manager.take_block_ops())
        except Exception as error:
            _log.exception("blocks could not be moved")
            self.scheduler.kv_cache_manager.block_pool.unseal_all()
            requests = [answer.request for answer in self._answers.values()]
            return StepResult(errors={r.request_id: error for r in requests if r.has_started})
        return None

    def _forward(self, scheduled: Sequence[ScheduledRequest], times: StepTimes) -> StepResult:
        if not scheduled:
            return StepResult()
        try:
            logits = self.model_runner.execute(scheduled)
            times.executed = self.clock()
            observe = self.events.wants(Level.TOKEN)
            return self.model_runner.sample(scheduled, logits, observe)
        except Exception as error:
            _log.exception("a step failed, and its requests with it")
            members = (member for share in scheduled for member in (share.request, *share.samplers))
            return StepResult(errors={member.request_id: error for member in members})

    def _save_blocks(self) -> None:
        """Keeps blocks that `update` has noted; without them prompts are only computed again."""
        try:
            self.model_runner.transfer(self.scheduler.kv_cache_manager.take_block_ops())
        except Exception:
            _log.exception("blocks could not be saved")

    def _emit(self, request: Request, result: StepResult, now: float) -> CompletionDelta | None:
        """Hands what a step gave a request to its caller."""
        answer = self._answers[request.request_id]
        sampled = result.sampled.get(request.request_id)
        try:
            if (logprobs := result.prompt_logprobs.get(request.request_id)) is not None:
                self.output_processor.append_prompt_logprobs(answer.request_output, logprobs)
            if sampled is None:  # in the middle of its prompt, or failed
                return self._end(request) if request.status is RequestStatus.FINISHED else None
            answer.request_output.metrics.token_times.append(now)
            delta = self.output_processor.append(answer, sampled)
        except Exception as error:
            self.scheduler.finish(request, FinishReason.ERROR, failure(error))
            delta = self.output_processor.fail(answer, error)
        if delta.finish_reason is not None:
            # By a stop string, unless the scheduler has ended it already.
            self.scheduler.finish(request, FinishReason.STOP, delta.stop_reason)
            self._drop(answer)
        return delta

    def _end(self, request: Request) -> CompletionDelta:
        """Closes the answer of a request that ended without a new token."""
        answer = self._answers[request.request_id]
        delta = self._close(answer)
        self._drop(answer)
        return delta

    def _advance_searches(self, result: StepResult, now: float) -> list[CompletionDelta]:
        """Takes each beam search one token further whose beams have all been computed.

        Returns:
            The answers of those that are over by that, or have failed.
        """
        touched: dict[BeamGroup, RequestOutput] = {}
        for request_id in (*result.beam_candidates, *result.errors):
            answer = self._answers[request_id]
            if answer.beams is not None:
                touched[answer.beams] = answer.request_output
                if (candidates := result.beam_candidates.get(request_id)) is not None:
                    answer.beams.deliver(answer.request, candidates)
        deltas: list[CompletionDelta] = []
        for beams, output in touched.items():
            if beams.is_ready and not beams.has_ended:
                step = beams.advance()
                output.metrics.token_times.append(now)
                if step is None:
                    best = beams.search.finished[0]
                    for member in beams.members:
                        self.scheduler.finish(member, best.finish_reason, best.stop_reason)
                else:
                    self.scheduler.reassign(step.members, step.parents, step.token_ids)
            if beams.has_ended:
                deltas += self._end_search(beams)
        return deltas

    def _end_search(self, beams: BeamGroup) -> list[CompletionDelta]:
        """Closes the answers of a beam search: with what it found, unless it was cut off."""
        answers = [self._answers[member.request_id] for member in beams.members]
        outputs = answers[0].request_output.outputs
        found: Sequence[Hypothesis | None] = [None] * len(outputs)
        if beams.search.done:
            found = beams.search.finished[: len(outputs)]
            del outputs[len(found) :]
        deltas = [self._close(*pair) for pair in zip(answers, found, strict=False)]
        for answer in answers:
            self._drop(answer)
        return deltas

    def _close(self, answer: Answer, found: Hypothesis | None = None) -> CompletionDelta:
        try:
            if found is not None:
                return self.output_processor.complete(answer, found)
            return self.output_processor.end(answer)
        except Exception as error:
            return self.output_processor.fail(answer, error)

    def _drop(self, answer: Answer) -> None:
        answer.request_output.metrics.num_preemptions += answer.request.num_preemptions
        del self._answers[answer.request.request_id]
        self._ended.append(answer)

    def _close_ended(self, deltas: list[CompletionDelta], now: float) -> list[CompletionDelta]:
        """Closes the ledgers of what has ended since the last time.

        Returns:
            `deltas`; of a request whose answers are ranked only the best ones, whole, when all have
            ended.
        """
        if self._num_best:
            deltas = [delta for delta in deltas if delta.request_id not in self._num_best]
        for answer in self._ended:
            output = answer.request_output
            ledger = self._recorder.close(answer.request.request_id, now)
            if output.finished and self._outputs.pop(output.request_id, None) is not None:
                output.metrics.finished_time = now
                output.ledger = ledger
                if (num_best := self._num_best.pop(output.request_id, None)) is not None:
                    deltas += self.output_processor.keep_best(output, num_best)
        self._ended.clear()
        return deltas


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    limit = model_config.context_length
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise ValueError(
            f"max_model_len={config.max_model_len}: the model's own limit is {limit} tokens"
        )
    return config.max_model_len
