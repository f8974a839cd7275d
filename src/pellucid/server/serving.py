"""The objects that the handlers of all routes share: configuration, model, generation service, bodies."""

from dataclasses import dataclass

from pellucid.async_engine import AsyncLLMEngine
from pellucid.server.body_memory import BodyMemory
from pellucid.server.config import ServerConfig
from pellucid.server.generation import GenerationService
from pellucid.server.served_engine import ServedEngine
from pellucid.server.served_model import ServedModel
from pellucid.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Serving:
    """One server's parts."""

    config: ServerConfig
    model: ServedModel
    service: GenerationService
    bodies: BodyMemory


@dataclass
class Handlers:
    """The handlers of some routes."""

    serving: Serving

    @property
    def config(self) -> ServerConfig:
        return self.serving.config

    @property
    def model(self) -> ServedModel:
        return self.serving.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.serving.model.tokenizer

    @property
    def service(self) -> GenerationService:
        return self.serving.service

    @property
    def engine(self) -> ServedEngine:
        return self.serving.service.engine


class OneEngineHandlers(Handlers):
    """The handlers of routes that look into the engine: where there are replicas, `app` refuses these routes."""

    @property
    def engine(self) -> AsyncLLMEngine:
        engine = super().engine
        assert isinstance(engine, AsyncLLMEngine)
        return engine
