"""The objects that the handlers of all routes share: configuration, model, generation service, bodies."""

from dataclasses import dataclass

from pellucid.server.body_memory import BodyMemory
from pellucid.server.config import ServerConfig
from pellucid.server.generation import GenerationService
from pellucid.server.served_model import ServedModel


@dataclass(frozen=True)
class Serving:
    """One server's parts."""

    config: ServerConfig
    model: ServedModel
    service: GenerationService
    bodies: BodyMemory
