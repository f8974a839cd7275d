"""The engine: each step is schedule, execute, update, emit."""

import itertools
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import structs

from pellucid.engine.completions import Completions
from pellucid.engine.engine_core import CoreOutput, EngineCore
from pellucid.engine.engine_events import Ceilings, StepCosts, hello, report_progress
from pellucid.engine.kv_storage import KVStorage, make_kv_storage
from pellucid.engine.request_maker import PreparedRequest, RequestMaker
from pellucid.engine.resumed_requests import (
    check_resumable,
    has_begun,
    resumed_output,
    resumed_requests,
)
from pellucid.engine.step_recorder import StepRecorder
from pellucid.execution.engine_identity import EngineIdentity
from pellucid.execution.model_runner import ModelRunner
from pellucid.execution.sampler import Sampler
from pellucid.facts.garbage import paused_collector
from pellucid.facts.kv_groups import kv_groups
from pellucid.inputs.beam_search_params import RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import EncodedPrompt, Prompt
from pellucid.loaded_model import LoadedModel, load_draft_model, load_model
from pellucid.loading.parameters import Progress
from pellucid.memory.engine_plan import max_model_len
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Snapshot
from pellucid.observing.ledger import StepTimes, Work
from pellucid.outputs import (
    CompletionDelta,
    CompletionOutput,
    KVCacheUsage,
    RequestMetrics,
    RequestOutput,
    SpeculationStatistics,
)
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.prefix_index import PrefixListener
from pellucid.scheduling.scheduler import Scheduler
from pellucid.speculation.proposers.proposer import Proposer
from pellucid.speculation.speculation import make_speculation

if TYPE_CHECKING:
    from pellucid.engine.inspection import Inspector
    from pellucid.speculation.proposers.draft_model import DraftModel


class LLMEngine:
    """Runs requests to their ends, many at a time, one step at a time.

    The engine constructs its parts, and each part owns its state.

    Args:
        config: the user's settings.
        model: weights, tokenizer and configuration of a checkpoint, on a backend.
        clock: seconds, monotonic.
        bus: carries events, with times of the same clock; left out, the engine makes one.
        ceilings: the machine's measured bandwidth and peak, for predictions in events; None: not measured.
        proposer: makes drafts for each step, in place of the one that `config` names.
        draft: the draft model that `config` names; None: there is no draft model.

    Attributes:
        events: the bus: `engine.events.subscribe(print, Level.STEP)`.
        plan: the sizes of its memory; `memory_plan` is its part in bytes.

    Raises:
        ValueError: the model, the backend or the memory does not allow a setting.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        clock: Callable[[], float] = time.monotonic,
        bus: EventBus | None = None,
        ceilings: Ceilings | None = None,
        proposer: Proposer | None = None,
        draft: LoadedModel | None = None,
    ) -> None:
        self.events = EventBus(clock) if bus is None else bus
        self.config = config
        self.model = model
        self.model_config = model.config
        self.tokenizer = model.tokenizer
        self.clock = clock
        self.max_model_len = max_model_len(config, model.config)
        has_drafts = proposer is not None or config.speculation != "off"
        storage = make_kv_storage(config, model, self.events, draft, has_drafts)
        self.plan = storage.plan
        self.memory_plan = storage.plan.memory
        self._close_storage = storage.close
        self.scheduler = _make_scheduler(config, storage, self.events, model.decoder.num_machines)
        self.model_runner = ModelRunner(
            model.decoder,
            storage.kv_cache,
            config.block_size,
            Sampler(),
            storage.transfer,
        )
        self._request_maker = RequestMaker(model.config, model.tokenizer, self.max_model_len)
        weights = model.decoder.step_weights
        costs = StepCosts(
            model.config, weights, self.memory_plan, config.max_num_batched_tokens, ceilings
        )
        step_log = costs.make_log(config.block_size, model.tokenizer.token_text)
        if step_log is not None:
            self.events.log_steps_in(step_log)
        self._recorder = StepRecorder(
            config,
            model.config,
            costs,
            self.memory_plan.bytes_per_block,
            model.tokenizer,
            self.events,
            step_log,
        )
        draft_model = _make_draft_model(
            config, draft, storage, model.config.vocab_size, self._watches
        )
        speculation = make_speculation(
            config, model.config, clock, self.events, proposer, draft_model
        )
        self._completions = Completions(model.tokenizer, self.scheduler, self._recorder)
        self._core = EngineCore(
            self.scheduler,
            self.model_runner,
            self._completions,
            self.events,
            clock,
            self._recorder,
            storage.prefix_store,
            speculation,
            model.elsewhere,
        )
        age_us = self.events.to_us(clock())
        self._hello = hello(config, model, weights, self.memory_plan, ceilings, age_us)
        self.events.introduce(self._hello)
        self._request_numbers = itertools.count()

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        on_progress: Progress | None = None,
        bus: EventBus | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> "LLMEngine":
        """Loads the model that `config` names, and makes an engine for it.

        Args:
            on_progress: called with (bytes read, bytes in all) while weights are downloaded, and while they load.
            bus: the engine's bus, for subscribers to the events of loading; its clock is `time.monotonic`.
            on_note: called with each sentence on what the model's files hold and was left out; left out,
                each is a RuntimeWarning.
        """
        bus = EventBus(time.monotonic) if bus is None else bus
        report = report_progress(bus, config.model, on_progress)
        with paused_collector():
            model = _loader(config)(config, report, on_download=on_progress)
            try:
                draft = load_draft_model(config, model)
                for sentence in _notes(model, draft):
                    (on_note or _warn)(sentence)
                return cls(config, model, bus=bus, draft=draft)
            except BaseException:
                model.close()
                raise

    @cached_property
    def identity(self) -> EngineIdentity:
        """What the bits of answers depend on besides requests; from now on in the event `hello` too.

        Raises:
            OSError: a file cannot be read.
        """
        identity = self.model.identity(self.config)
        self.events.introduce(structs.replace(self._hello, identity=identity.id))
        return identity

    @cached_property
    def inspector(self) -> "Inspector":
        """Looks at blocks and at single tokens, between two steps."""
        # Imported here: answers need none of it.
        from pellucid.engine.inspection import Inspector

        return Inspector(
            self.config, self.model, self.scheduler, self.model_runner, self._request_maker
        )

    @property
    def speculation(self) -> SpeculationStatistics | None:
        """The counters of drafts so far, as they are now; None if speculation is off."""
        if self._core.speculation is None:
            return None
        now = self._core.speculation.statistics
        return replace(now, right_by_position=list(now.right_by_position))

    def watch_prefixes(self, listener: PrefixListener) -> None:
        """Tells `listener` of every block that the prefix index gets or loses.

        Raises:
            ValueError: the index has blocks already.
        """
        index = self.scheduler.kv_cache_manager.block_pool.index
        if len(index):
            raise ValueError("listener: must come before the first request; the index has blocks")
        index.listener = listener

    def close(self) -> None:
        """Writes the blocks that wait for `prefix_store`, saves no further blocks there, and lets stages go.

        A process that ends without this call writes them too.
        """
        self._close_storage()
        self.model.close()

    @property
    def unfinished_request_ids(self) -> Collection[str]:
        """The ids of the requests that have not ended."""
        return self._completions.outputs.keys()

    @property
    def last_steps(self) -> Sequence[tuple[StepTimes, Sequence[Work]]]:
        """The times of the latest steps, and the work of each request in them; the last step may be
        incomplete."""
        return tuple(self._recorder.last_steps)

    def kv_cache_usage(self) -> KVCacheUsage:
        """The blocks of the KV cache between two steps."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return KVCacheUsage(
            num_blocks=pool.num_blocks,
            num_used_blocks=pool.num_used_blocks,
            num_cached_blocks=pool.num_cached_blocks,
        )

    @property
    def num_unfinished_sequences(self) -> int:
        """Completions and beams that run or wait."""
        return len(self._completions)

    @property
    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Encodes a prompt: the part of `add_request` that tokenizes, with its errors. From any thread."""
        return self._request_maker.encode(prompt, self.clock)

    def prepare(self, prompt: Prompt | EncodedPrompt, params: RequestParams) -> PreparedRequest:
        """Encodes and checks a request: all of `add_request` that takes time, with its errors. From any thread."""
        return self._request_maker.prepare(prompt, params, self.clock)

    def preparing_takes_time(self, prompt: Prompt | EncodedPrompt, params: RequestParams) -> bool:
        """Whether `prepare` takes time that grows with texts. From any thread."""
        return self._request_maker.preparing_takes_time(prompt, params)

    def check_request(
        self,
        prompt: EncodedPrompt,
        params: RequestParams,
        request_id: str,
        priority: int,
        cache_salt: str | None,
    ) -> None:
        """Raises the errors that `add_request` would raise, and queues nothing. From any thread.

        Args:
            request_id: what an error calls the request.
        """
        prepared = self.prepare(prompt, params)
        for request in self._request_maker.make(request_id, prepared, priority, cache_salt):
            self.scheduler.check_fits(request)

    def add_request(
        self,
        prompt: Prompt | EncodedPrompt,
        params: RequestParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        caller: str = "",
        caller_weight: float = 1.0,
    ) -> RequestOutput:
        """Queues a request.

        Args:
            prompt: text, token ids, or a conversation; or what `encode` made of it.
            params: how to sample or search, and when to stop.
            request_id: unique among unfinished requests; left out, the engine chooses one.
            priority: lower is sooner; each level counts as having arrived 10 s earlier.
            cache_salt: only requests with the same salt share cached prompts; up to 256 characters.
            caller: callers share the engine fairly; priority orders the requests of one caller.
            caller_weight: two callers with weights 2 and 1 get tokens 2 to 1 while both have requests waiting.

        Returns:
            The request's output, which fills as `step` is called.

        Raises:
            ValueError: the prompt or a parameter cannot be served; nothing was queued.
        """
        return self.add_prepared(
            self.prepare(prompt, params),
            request_id,
            priority=priority,
            cache_salt=cache_salt,
            caller=caller,
            caller_weight=caller_weight,
        )

    def add_prepared(
        self,
        prepared: PreparedRequest,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        continues: tuple[str, int] | None = None,
        resumes: RequestOutput | None = None,
        caller: str = "",
        caller_weight: float = 1.0,
    ) -> RequestOutput:
        """Queues a request that `prepare` made. All else is as in `add_request`.

        Args:
            resumes: the same request as another engine of the same identity has left it. Its completions go on
                with the tokens, texts and log-probabilities that they would have had there; the deltas have
                only what is new. Used are its seed, outputs, and log-probabilities of the prompt.
            continues: an unfinished completion ("r/0") whose text begins like the prompt, and how many tokens
                both share: the new request shares the blocks of these tokens. Left out, or if that completion
                has ended, the request only finds blocks in the prefix cache.
        """
        encoded, params = prepared.prompt, prepared.params
        if request_id is None:
            request_id = self._unused_request_id()
        if request_id in self._completions.outputs:
            raise ValueError(f"request_id={request_id!r}: is the id of an unfinished request")
        requests = self._request_maker.make(
            request_id, prepared, priority, cache_salt, caller, caller_weight
        )
        outputs = [CompletionOutput(index) for index in range(params.num_results)]
        prompt_logprobs = None
        if resumes is not None:
            check_resumable(resumes, requests, self.model_config.vocab_size)
            requests = resumed_requests(resumes, requests)
            outputs = [resumed_output(each) for each in resumes.outputs]
            prompt_logprobs = resumes.prompt_logprobs if has_begun(resumes) else None
        output = RequestOutput(
            request_id=request_id,
            prompt=encoded.text,
            prompt_token_ids=list(encoded.token_ids),
            seed=requests[0].seed,
            outputs=outputs,
            metrics=RequestMetrics(arrival_time=encoded.arrival_time),
            prompt_logprobs=prompt_logprobs,
        )
        self.scheduler.check_fits(requests[0])
        self._completions.start(output, requests, prepared, resumes)
        # Completions that have tokens share no step that computes their prompt.
        shares_prompt = resumes is None or not has_begun(resumes)
        for queued in [requests] if shares_prompt else [[each] for each in requests]:
            self.scheduler.add_request(*queued)
        for request in requests:
            self._recorder.add(request, output, encoded.encoded_time)
        if continues is not None:
            parent = self._completions.unfinished.get(continues[0])
            if parent is not None:
                self.scheduler.continue_from(requests[0], parent.request, continues[1])
        return output

    def step(self) -> list[CompletionDelta]:
        """Computes one step, and returns what it added to each completion, in the order of the step. On stages,
        further steps are under way when it returns.

        An error of one request ends this request with finish_reason "error". If the forward fails, all
        requests of the step end. If moving blocks fails, all requests that may have blocks end. The engine
        continues.
        """
        return self._deltas(self._core.step())

    def abort(self, request_id: str) -> list[CompletionDelta]:
        """Ends a request at once, running or waiting; ignores unknown and finished ids.

        Returns:
            The last deltas of its completions that were unfinished. On stages, before them what the steps under way
            have added to any completion: they come to their end first.
        """
        if request_id not in self._completions.outputs:
            return []
        deltas = [delta for step in self._core.finish_all() for delta in self._deltas(step)]
        self._completions.abort(request_id)
        ended = self._core.take_ended()
        deltas += self._completions.deltas((), ended)
        return deltas + self._completions.close(ended, self.clock())

    def snapshot(self, with_tokens: bool = False) -> Snapshot:
        """All requests and blocks between two steps, for a subscriber that begins now.

        Args:
            with_tokens: name the tokens of each request.
        """
        return self.scheduler.snapshot(self.events.last_seq, with_tokens)

    def _deltas(self, step: CoreOutput) -> list[CompletionDelta]:
        """What a step added to each completion; it is recorded, and completions that have ended are forgotten."""
        deltas = self._completions.deltas(step.taken, step.ended)
        now = self.clock()
        assert step.record is not None
        self._recorder.end_step(step.record, step.scheduled, step.preempted, step.expert_bytes, now)
        return deltas + self._completions.close(step.ended, now)

    def _watches(self, request_id: str) -> bool:
        """Whether a subscriber wants the tokens of a request."""
        return self.events.active and self.events.watches(request_id)

    def _unused_request_id(self) -> str:
        names = (f"request-{number}" for number in self._request_numbers)
        return next(name for name in names if name not in self._completions.outputs)


def _loader(config: EngineConfig) -> Callable[..., LoadedModel]:
    """The function that loads the model; imported here if other processes compute parts of it, as for few engines."""
    if config.stages is not None:
        from pellucid.stages.staged_model import load_staged_model

        return load_staged_model
    if config.tensor_parallel_size > 1:
        from pellucid.stages.divided_model import load_divided_model

        return load_divided_model
    return load_model


def _notes(model: LoadedModel, draft: LoadedModel | None) -> list[str]:
    """What was left out of the files of both models, with the name of each. What both leave out is said once."""
    named: dict[str, str] = {}
    for loaded in (model, *([draft] if draft is not None else ())):
        for text in loaded.notes:
            named.setdefault(text, f"{loaded.name}: {text}")
    return list(named.values())


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=4)


def _make_scheduler(
    config: EngineConfig, storage: KVStorage, events: EventBus, max_steps: int
) -> Scheduler:
    manager = KVCacheManager(
        BlockPool(storage.plan.cache.num_blocks),
        config.block_size,
        # Without the cache nothing that was computed may be found again.
        config.enable_prefix_caching and config.use_kv_cache,
        storage.offload(),
        storage.plan.memory.block_needs.windows,
        config.max_num_batched_tokens,
        storage.plan.cache.state_pool(),
        open_slots=storage.plan.cache.open_slots,
    )
    return Scheduler(
        manager,
        events,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.use_kv_cache,
        storage.plan.max_extra_logits,
        max_steps,
    )


def _make_draft_model(
    config: EngineConfig,
    draft: LoadedModel | None,
    storage: KVStorage,
    vocab_size: int,
    watches: Callable[[str], bool],
) -> "DraftModel | None":
    """The proposer that runs the draft model, with blocks of its own."""
    plan = storage.plan.draft_cache
    if draft is None or plan is None or storage.draft_kv_cache is None:
        return None
    # Imported here: few engines have one.
    from pellucid.speculation.proposers.draft_model import DraftModel

    manager = KVCacheManager(
        BlockPool(plan.num_blocks),
        config.block_size,
        windows=[group.window for group in kv_groups(draft.config)],
        max_chunk=config.max_num_batched_tokens,
        state_pool=plan.state_pool(),
        open_slots=plan.open_slots,
    )
    return DraftModel(
        ModelRunner(draft.decoder, storage.draft_kv_cache, config.block_size, Sampler()),
        manager,
        vocab_size,
        config.max_num_batched_tokens,
        draft.config.context_length,
        watches,
    )
