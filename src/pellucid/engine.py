"""The engine: schedule, execute, update, emit."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from pellucid import formulas
from pellucid.config import EngineConfig, ModelConfig
from pellucid.execution.forward_batch import logits_rows
from pellucid.execution.model_runner import ModelRunner, StepResult
from pellucid.execution.sampler import Sampler
from pellucid.kv_storage import make_kv_storage
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.parameters import Progress
from pellucid.output_processor import Answer, OutputProcessor
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestMetrics, RequestOutput
from pellucid.prompts import EncodedPrompt, Prompt
from pellucid.request_maker import RequestMaker
from pellucid.sampling_params import SamplingParams
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest


class LLMEngine:
    """Runs requests to their ends, many at a time, one step at a time.

    Constructs its parts and hands them what they own; keeps only the answers under way.

    Args:
        config: the user's knobs.
        model: weights, tokenizer and facts of a checkpoint, on a backend.
        clock: seconds, monotonic.

    Raises:
        ValueError: a knob asks for what the model, the backend or the memory cannot give.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.model = model
        self.model_config = model.config
        self.tokenizer = model.tokenizer
        self.clock = clock
        self.max_model_len = _max_model_len(config, model.config)
        storage = make_kv_storage(config, model, self.max_model_len)
        self.memory_plan = storage.plan
        self.scheduler = Scheduler(
            KVCacheManager(
                BlockPool(storage.plan.num_blocks),
                config.block_size,
                # Without the cache nothing that was computed may be found again.
                config.enable_prefix_caching and config.use_kv_cache,
            ),
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.use_kv_cache,
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
        self._outputs: dict[str, RequestOutput] = {}  # of requests under way
        self._answers: dict[str, Answer] = {}  # by the id of the scheduler's request
        self._num_requests = 0

    @classmethod
    def from_config(cls, config: EngineConfig, on_progress: Progress | None = None) -> "LLMEngine":
        """Loads what `config` names.

        Args:
            on_progress: called with (bytes read, bytes in all) while weights load.
        """
        return cls(config, load_model(config, on_progress))

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
        return self._request_maker.encode(prompt, self.clock())

    def add_request(
        self,
        prompt: Prompt | EncodedPrompt,
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Queues a request.

        Args:
            prompt: text, token ids, or a conversation; or what `encode` made of it.
            params: how to choose and when to stop.
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
            outputs=[CompletionOutput(index) for index in range(params.n)],
            metrics=RequestMetrics(arrival_time=encoded.arrival_time),
        )
        self.scheduler.add_request(*requests)
        for request in requests:
            self._answers[request.request_id] = self.output_processor.start(request, output)
        self._outputs[request_id] = output
        self._num_requests += 1
        return output

    def step(self) -> list[CompletionDelta]:
        """Computes one step; what it added to each answer, in the order of the step."""
        output = self.scheduler.schedule(self.clock())
        self._transfer_blocks()
        self._book(output.scheduled)
        result = self.model_runner.execute(output.scheduled)
        for request_id, error in result.errors.items():
            request = self._answers[request_id].request
            self.scheduler.finish(request, FinishReason.ERROR, str(error))
        token_ids = {key: sampled.token_id for key, sampled in result.sampled.items()}
        now = self.clock()
        self.scheduler.update(output, token_ids, now)
        self._transfer_blocks()

        deltas = [
            self._emit(request, result, now)
            for share in output.scheduled
            for request in share.samplers or (share.request,)
        ]
        deltas += [self._end(request, now) for request in output.expired]
        return [delta for delta in deltas if delta is not None]

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
                request = self._answers[f"{request_id}/{completion.index}"].request
                self.scheduler.finish(request, FinishReason.ABORT)
                deltas.append(self._end(request, self.clock()))
        return deltas

    def _transfer_blocks(self) -> None:
        self.model_runner.transfer(self.scheduler.kv_cache_manager.take_block_ops())

    def _emit(self, request: Request, result: StepResult, now: float) -> CompletionDelta | None:
        """Hands what a step gave a request to its caller."""
        answer = self._answers[request.request_id]
        if (logprobs := result.prompt_logprobs.get(request.request_id)) is not None:
            self.output_processor.append_prompt_logprobs(answer.request_output, logprobs)
        sampled = result.sampled.get(request.request_id)
        if sampled is None:  # in the middle of its prompt, or failed
            return self._end(request, now) if request.status is RequestStatus.FINISHED else None
        answer.request_output.metrics.token_times.append(now)
        delta = self.output_processor.append(answer, sampled)
        if delta.finish_reason is not None:
            # By a stop string, unless the scheduler has ended it already.
            self.scheduler.finish(request, FinishReason.STOP, delta.stop_reason)
            self._drop(answer, now)
        return delta

    def _end(self, request: Request, now: float) -> CompletionDelta:
        """Closes the answer of a request that ended without a new token."""
        answer = self._answers[request.request_id]
        delta = self.output_processor.end(answer)
        self._drop(answer, now)
        return delta

    def _drop(self, answer: Answer, now: float) -> None:
        output = answer.request_output
        output.metrics.num_preemptions += answer.request.num_preemptions
        del self._answers[answer.request.request_id]
        if output.finished:
            output.metrics.finished_time = now
            del self._outputs[output.request_id]

    def _book(self, scheduled: Sequence[ScheduledRequest]) -> None:
        """Books a step's work in the metrics of its requests."""
        now = self.clock()
        held: dict[str, int] = defaultdict(int)  # bytes of KV blocks by request
        for share in scheduled:
            output = self._answers[share.request.request_id].request_output
            metrics = output.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now
                output.num_cached_tokens = share.request.num_cached_tokens
            metrics.num_processed_tokens += share.num_scheduled_tokens
            metrics.flops += formulas.forward_flops(
                self.model_config, share.start, share.end, len(logits_rows(share))
            )
            if self.config.use_kv_cache:
                held[output.request_id] += len(share.block_ids) * self.memory_plan.bytes_per_block
                metrics.kv_cache_bytes = max(metrics.kv_cache_bytes, held[output.request_id])


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    limit = model_config.context_length
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise ValueError(
            f"max_model_len={config.max_model_len}: the model's own limit is {limit} tokens"
        )
    return config.max_model_len
