"""A side engine: another engine over the same weights, stepped on the thread of the main one, in turns with it."""

from collections.abc import Sequence
from functools import partial
from typing import final

from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.llm_engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_draft_model
from pellucid.observing.event_bus import Subscriber
from pellucid.observing.events import Level
from pellucid.outputs import CompletionDelta, RequestOutput


@final
class SideEngine:
    """Runs requests for a demonstration beside the requests of users. `make` it on an event loop.

    The native threads serve one engine at a time, so its steps run between those of the main engine: both
    slow each other down, and neither waits for a reader. Each step's own times are in its events.
    """

    def __init__(self, thread: EngineThread, engine: LLMEngine) -> None:
        self._thread = thread
        self._engine = engine
        self.memory_plan = engine.memory_plan
        self.config = engine.config

    @classmethod
    async def make(cls, thread: EngineThread, config: EngineConfig) -> "SideEngine":
        """An engine for the model of the thread's engine.

        Raises:
            ValueError: the memory does not allow a setting, or the draft model cannot be loaded.
        """

        def make() -> LLMEngine:
            model = thread.engine.model.beside(config.block_size, config.kv_cache_dtype)
            try:
                return LLMEngine(config, model, draft=load_draft_model(config, model))
            except BaseException:
                model.close()
                raise

        return cls(thread, await thread.ask(make))

    def subscribe(self, subscriber: Subscriber, level: Level) -> None:
        """Calls `subscriber` with the engine's events, on the engine's thread."""
        self._engine.events.subscribe(subscriber, level)

    async def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, request_id: str
    ) -> RequestOutput:
        """Queues a request. Its output fills as steps run.

        Raises:
            ValueError: the prompt or a parameter cannot be served.
        """
        add = partial(self._engine.add_request, list(prompt_token_ids), params, request_id)
        return await self._thread.ask(add)

    async def step(self) -> list[CompletionDelta]:
        """One step; nothing if no request is unfinished."""
        return await self._thread.ask(self._engine.step)

    @property
    def has_unfinished_requests(self) -> bool:
        return self._engine.has_unfinished_requests

    @property
    def kv_bytes_in_use(self) -> int:
        """Of blocks with an owner, between two steps."""
        usage = self._engine.kv_cache_usage()
        return usage.num_used_blocks * self.memory_plan.bytes_per_block

    async def close(self) -> None:
        """Aborts its requests and closes it."""

        def close() -> None:
            for request_id in list(self._engine.unfinished_request_ids):
                self._engine.abort(request_id)
            self._engine.close()

        await self._thread.ask(close)
