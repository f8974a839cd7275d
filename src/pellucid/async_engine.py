"""AsyncLLMEngine: one engine on a thread of its own, which many asyncio tasks share."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar, final

from pellucid.engine import LLMEngine
from pellucid.engine.async_stream import AsyncTokenStream, Signal
from pellucid.engine.engine_thread import EngineStoppedError, EngineThread, TooManyRequestsError
from pellucid.engine.inspection import AnswerSoFar, Inspector, NoBlocksError
from pellucid.engine.request_maker import PreparedRequest
from pellucid.engine.side_engine import SideEngine
from pellucid.engine.text_threads import TextThreads
from pellucid.execution.engine_identity import EngineIdentity
from pellucid.inputs.beam_search_params import RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.parameter_checks import Interval
from pellucid.inputs.prompts import EncodedPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import Snapshot
from pellucid.outputs import CompletionDelta, KVCacheUsage, RequestOutput, SpeculationStatistics
from pellucid.scheduling.block import BlockKey
from pellucid.scheduling.prefix_index import PrefixListener

__all__ = [
    "AnswerSoFar",
    "AsyncLLMEngine",
    "AsyncTokenStream",
    "BlockKey",
    "EngineStoppedError",
    "Inspector",
    "NoBlocksError",
    "PrefixListener",
    "PreparedRequest",
    "SideEngine",
    "Signal",
    "TextThreads",
    "TooManyRequestsError",
]

Result = TypeVar("Result")

DEFAULT_MAX_REQUESTS = 1024
# Token ids of a prompt that are checked on the event loop, within half a millisecond. To wake a thread takes that long
# while the engine computes.
MAX_IDS_IN_PLACE = 4096


@final
class AsyncLLMEngine:
    """Runs an engine for the tasks of one or several event loops.

    One thread uses the engine. It runs steps while there are requests, and never waits for a reader. An
    `async with` block ends with `shutdown`. An engine without references is shut down when Python collects it,
    or when the interpreter exits. Coroutines raise EngineStoppedError after a shutdown and after a failure.

    Args:
        engine: from now on used by this object alone.
        max_requests: most unfinished requests, running and waiting together.
        on_failure: called on the engine's thread with the error that ended the engine.

    Attributes:
        events: the engine's bus. Subscribe from any thread; subscribers are called on the engine's.

    Raises:
        ValueError: the engine has requests already, or max_requests is not a whole number >= 1.
    """

    def __init__(
        self,
        engine: LLMEngine,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        on_failure: Callable[[LLMEngine, BaseException], object] | None = None,
    ) -> None:
        max_requests = Interval(1).integer("max_requests", max_requests)
        if engine.has_unfinished_requests:
            raise ValueError("engine: has unfinished requests; pass an engine without requests")
        self.config = engine.config
        self.model_config = engine.model_config
        self.model_name = engine.model.name
        self.model_file_format = engine.model.file_format
        self.max_model_len = engine.max_model_len
        self.plan = engine.plan
        self.memory_plan = engine.memory_plan
        self.default_sampling_params = engine.model.default_sampling_params
        self.tokenizer = engine.tokenizer
        self.events = engine.events
        # Here `encode`, `prepare` and `identity` alone are called; all else on its thread.
        self._engine = engine
        self._texts = TextThreads(max_waiting=max_requests)
        self._thread = EngineThread(engine, max_requests, on_failure)
        # Called before daemon threads are frozen at exit, which native code may not survive.
        weakref.finalize(self, _stop, self._thread, self._texts)

    @classmethod
    def from_config(
        cls, config: EngineConfig, max_requests: int = DEFAULT_MAX_REQUESTS
    ) -> "AsyncLLMEngine":
        """Loads what `config` names."""
        return cls(LLMEngine.from_config(config), max_requests)

    @property
    def identity(self) -> EngineIdentity:
        """See `LLMEngine.identity`. The first call may read all files of the checkpoint."""
        return self._engine.identity

    async def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The tokens of a prompt. What takes time is done off the event loop and off the engine's thread.

        Raises:
            ValueError: the prompt cannot be served.
            TooManyRequestsError: too many texts wait to be encoded.
        """
        if isinstance(prompt, list | tuple) and len(prompt) <= MAX_IDS_IN_PLACE:
            return self._engine.encode(prompt)  # there is nothing to encode, only to check
        return await self._texts.run(partial(self._engine.encode, prompt))

    async def prepare(
        self, prompt: Prompt | EncodedPrompt, params: RequestParams
    ) -> PreparedRequest:
        """Encodes and compiles what a request needs, off the event loop if it takes time. Arguments and errors are
        those of `add_request`."""
        prepare = partial(self._engine.prepare, prompt, params)
        if self._engine.preparing_takes_time(prompt, params):
            return await self._texts.run(prepare)
        return prepare()

    async def add_request(
        self,
        prompt: Prompt | EncodedPrompt | PreparedRequest,
        params: RequestParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        continues: tuple[str, int] | None = None,
        resumes: RequestOutput | None = None,
        caller: str = "",
        caller_weight: float = 1.0,
    ) -> AsyncTokenStream:
        """Queues a request.

        Args:
            prompt: text, token ids, or a conversation; or what `encode` or `prepare` made of it.
            params: how to choose, or how to search, and when to stop; left out, those that
                the checkpoint recommends, or that `prepare` was given.
            request_id: unique among unfinished requests; left out, the engine chooses one.
            priority: lower is sooner; each level counts as having arrived 10 s earlier.
            cache_salt: only requests with the same salt share cached prompts; up to 256 characters.
            continues, resumes: as in `LLMEngine.add_prepared`.
            caller: callers share the engine fairly; priority orders the requests of one caller.
            caller_weight: two callers with weights 2 and 1 get tokens 2 to 1 while both have requests waiting.

        Returns:
            The request's stream. Close it if it is not read to its end.

        Raises:
            ValueError: the prompt or a parameter cannot be served; nothing was queued.
            TooManyRequestsError: `max_requests` are unfinished, or as many texts wait to be encoded.
        """
        self._thread.admit()
        try:
            if isinstance(prompt, PreparedRequest):
                prepared = prompt
            else:
                if params is None:
                    params = self._engine.model.default_sampling_params
                prepared = await self.prepare(prompt, params)
        except BaseException:
            self._thread.give_up()
            raise
        stream = AsyncTokenStream(self._abort_stream)
        add = partial(
            self._engine.add_prepared,
            prepared,
            request_id,
            priority=priority,
            cache_salt=cache_salt,
            continues=continues,
            resumes=resumes,
            caller=caller,
            caller_weight=caller_weight,
        )
        added = self._thread.add(stream, add)
        try:
            # Shielded, so that what is added or not is decided on the engine's thread alone.
            await asyncio.shield(asyncio.wrap_future(added))
        except asyncio.CancelledError:
            self._abort_stream(stream)
            raise
        return stream

    async def generate(
        self,
        prompt: Prompt | EncodedPrompt,
        params: RequestParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[CompletionDelta]:
        """Queues a request and yields its deltas. Closing the iterator aborts the request.

        Arguments and errors are those of `add_request`, raised where iteration begins.
        """
        stream = await self.add_request(
            prompt, params, request_id, priority=priority, cache_salt=cache_salt
        )
        async with stream:
            async for delta in stream:
                yield delta

    async def kv_cache_usage(self) -> KVCacheUsage:
        """The blocks of the KV cache, after the current step."""
        return await self._thread.ask(self._engine.kv_cache_usage)

    async def speculation(self) -> SpeculationStatistics | None:
        """The counters of drafts, after the current step; None if speculation is off."""
        return await self._thread.ask(lambda: self._engine.speculation)

    async def snapshot(self, with_tokens: bool = False) -> Snapshot:
        """All requests and blocks between two steps, for a subscriber that begins now.

        Args:
            with_tokens: name the tokens of each request.
        """
        return await self._thread.ask(partial(self._engine.snapshot, with_tokens))

    def watch_prefixes(self, listener: PrefixListener) -> None:
        """Tells `listener` of every block that the prefix index gets or loses, on the engine's thread.

        Raises:
            ValueError: the index has blocks already.
        """
        self._engine.watch_prefixes(listener)

    async def inspect(self, look: Callable[[Inspector], Result]) -> Result:
        """Calls `look` on the engine's thread between two steps, and returns its result. `look` delays the
        next step."""
        return await self._thread.ask(partial(look, self._engine.inspector))

    async def answer_so_far(
        self,
        prompt: EncodedPrompt,
        params: SamplingParams,
        seed: int,
        index: int = 0,
        output_token_ids: Sequence[int] = (),
        cache_salt: str | None = None,
    ) -> AnswerSoFar:
        """An answer up to some token, for `Inspector.logits` and `Inspector.attention`.

        Args:
            prompt, params, seed, cache_salt: of its request.
            index: which of the request's completions it is.
        """
        prepared = await self.prepare(prompt, params)
        return AnswerSoFar(prepared, seed, index, output_token_ids, cache_salt)

    async def side_engine(self, config: EngineConfig) -> SideEngine:
        """Another engine over the same weights, which steps in turns with this one. The caller closes it.

        Raises:
            ValueError: the memory does not allow a setting.
        """
        return await SideEngine.make(self._thread, config)

    def abort(self, request_id: str) -> None:
        """Ends a request after the current step: its stream ends with finish_reason "abort".

        Unknown and finished ids are ignored. From any thread.
        """
        self._thread.call(partial(self._thread.abort, request_id))

    async def shutdown(self, *, drain: bool = False) -> None:
        """Refuses new requests from now on; returns when the engine is closed and its thread ended.

        Args:
            drain: wait until the unfinished requests have ended; otherwise they are aborted.
        """
        self._thread.stop(drain=drain)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._texts.stop)

    @property
    def is_healthy(self) -> bool:
        """Whether requests are accepted: the engine was not shut down and has not failed."""
        return self._thread.is_accepting

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the engine; None while it runs and after a shutdown."""
        return self._thread.failure

    @property
    def num_unfinished_requests(self) -> int:
        return self._thread.num_requests

    @property
    def num_compute_threads(self) -> int | None:
        """Threads of the next step, fewer while other programs use the cores; None: the backend does not say."""
        use = self._engine.model.backend.thread_use
        return None if use is None else use.num_threads

    @property
    def last_step_time(self) -> float | None:
        """When the last step ended, on the engine's clock; None before the first."""
        return self._thread.last_step_time

    @property
    def seconds_without_step(self) -> float:
        """Seconds since the last step ended, while the engine has requests; 0 without requests. Whether anybody reads
        their deltas does not matter.

        Many: something is stuck.
        """
        last = self._thread.progress_time
        return 0.0 if last is None else time.monotonic() - last

    async def __aenter__(self) -> "AsyncLLMEngine":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    def _abort_stream(self, stream: AsyncTokenStream) -> None:
        self._thread.call(partial(self._thread.abort_stream, stream))


def _stop(thread: EngineThread, texts: TextThreads) -> None:
    thread.stop(drain=False)
    thread.join()
    texts.stop()
