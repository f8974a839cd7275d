"""What a Ray Serve application is built from: settings of the engines, and of what stands around them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import msgspec

from pellucid.inputs.config import EngineConfig

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of the application that are not those of `EngineConfig`.

    Args:
        num_replicas: engines; the fewest, if there is `max_replicas`.
        max_replicas: most engines; None: their number does not change.
        target_requests: unfinished requests of an engine above which another one is wanted.
        target_kv_usage: share of the KV blocks of an engine that is in use above which another one is wanted.
        num_cpus: cores of an engine, and its threads if `num_threads` is left out.
        num_gpus: of an engine.
        num_fronts: processes that speak the protocols.
        drain_seconds: how long a replica that is to end may answer its requests; others go on with the rest.
        model_name: by which clients call the model; None: the model's own name.
        api_keys: a file of keys, as for `pellucid serve`, on the machines of the fronts.
        allow_anyone: serve without keys.
        isolate_keys: callers with different keys learn nothing of each other's requests.
        max_queue: most unfinished completions of a front.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """

    num_replicas: int = 1
    max_replicas: int | None = None
    target_requests: float = 16.0
    target_kv_usage: float = 0.8
    num_cpus: int = 1
    num_gpus: float = 0.0
    num_fronts: int = 1
    drain_seconds: float = 60.0
    model_name: str | None = None
    api_keys: str | None = None
    allow_anyone: bool = False
    isolate_keys: bool = False
    max_queue: int = 1024

    def __post_init__(self) -> None:
        for name in ("num_replicas", "num_cpus", "num_fronts", "max_queue"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value!r}: must be at least 1")
        for name in ("target_requests", "target_kv_usage", "drain_seconds"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name}={value!r}: must be above 0")
        if self.num_gpus < 0:
            raise ValueError(f"num_gpus={self.num_gpus!r}: must be at least 0")
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(
                f"max_replicas={self.max_replicas!r}: must be at least num_replicas={self.num_replicas}"
            )


def parse(arguments: Mapping[str, object]) -> tuple[EngineConfig, Settings]:
    """Settings by name; the command line of Ray gives them as text.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """
    of_engine = {field.name for field in fields(EngineConfig)}
    of_application = {field.name for field in fields(Settings)}
    if unknown := sorted(arguments.keys() - of_engine - of_application):
        known = ", ".join(sorted(of_engine | of_application))
        raise ValueError(f"{unknown[0]}: there is no such argument; there are {known}")
    config = _convert(arguments, of_engine, EngineConfig)
    settings = _convert(arguments, of_application, Settings)
    if config.stages is not None:
        raise ValueError(f"stages={config.stages!r}: compute for one engine; leave it out")
    if (num_ranks := config.tensor_parallel_size) > 1:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: MPI starts the processes, and Ray these; leave it out"
        )
    if config.num_threads is None:
        config = replace(config, num_threads=settings.num_cpus)
    return config, settings


def _convert(arguments: Mapping[str, object], names: set[str], kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(
            {name: value for name, value in arguments.items() if name in names}, kind, strict=False
        )
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
