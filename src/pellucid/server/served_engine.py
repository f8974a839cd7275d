"""What a server needs of what computes its answers: one engine, or a pool of replicas."""

from typing import Protocol

from pellucid.async_engine import AsyncTokenStream, PreparedRequest
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import EncodedPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.memory.memory_plan import MemoryPlan
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Snapshot
from pellucid.outputs import KVCacheUsage, SpeculationStatistics
from pellucid.text.tokenizer import Tokenizer


class Identity(Protocol):
    """What the bits of answers depend on besides requests."""

    def facts(self) -> dict[str, str | int]: ...


class ServedEngine(Protocol):
    """`AsyncLLMEngine` says what each of these is."""

    config: EngineConfig
    model_config: ModelConfig
    model_name: str
    model_file_format: str
    max_model_len: int
    memory_plan: MemoryPlan
    default_sampling_params: SamplingParams
    tokenizer: Tokenizer
    events: EventBus

    @property
    def identity(self) -> Identity: ...

    @property
    def is_healthy(self) -> bool: ...

    @property
    def seconds_without_step(self) -> float: ...

    @property
    def num_compute_threads(self) -> int | None: ...

    async def encode(self, prompt: Prompt) -> EncodedPrompt: ...

    async def prepare(
        self, prompt: Prompt | EncodedPrompt, params: SamplingParams
    ) -> PreparedRequest: ...

    async def add_request(
        self,
        prompt: PreparedRequest,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        continues: tuple[str, int] | None = None,
        caller: str = "",
        caller_weight: float = 1.0,
    ) -> AsyncTokenStream: ...

    def abort(self, request_id: str) -> None: ...

    async def kv_cache_usage(self) -> KVCacheUsage: ...

    async def speculation(self) -> SpeculationStatistics | None: ...

    async def snapshot(self, with_tokens: bool = False) -> Snapshot: ...

    async def shutdown(self) -> None: ...
