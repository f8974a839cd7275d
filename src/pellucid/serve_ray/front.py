"""The deployment that speaks to clients: protocols, keys, limits, tokenizer and templates."""

from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from pellucid.cluster.replica_pool import ReplicaPool, plan_without_memory
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_without_weights
from pellucid.serve_ray.serve_replicas import ServeReplicas
from pellucid.serve_ray.settings import Settings
from pellucid.server.api_keys import ApiKeys
from pellucid.server.app import make_app, make_serving
from pellucid.server.asgi_bodies import AsgiBodies
from pellucid.server.config import Limits, ServerConfig


class Front:
    """A front, which becomes ready when an engine is.

    Args:
        config: of the engines.
        settings: of the application.
        engines: Ray's handle of their deployment.

    Raises:
        ValueError: there are no keys, and `allow_anyone` is not set.
    """

    _pool: ReplicaPool | None = None

    def __init__(self, config: EngineConfig, settings: Settings, engines: Any) -> None:
        keys = None if settings.api_keys is None else Path(settings.api_keys)
        server_config = ServerConfig(
            host="0.0.0.0",  # Ray decides on the address: keys are needed as if all reached it
            model_names=() if settings.model_name is None else (settings.model_name,),
            api_keys=ApiKeys.read(keys),
            allow_anyone=settings.allow_anyone,
            isolate_keys=settings.isolate_keys,
            limits=Limits(max_unfinished_completions=settings.max_queue),
        )
        model = load_without_weights(config)
        self._pool = ReplicaPool(
            config,
            model,
            plan_without_memory(config, model),
            lambda: ServeReplicas(engines),
            settings.max_queue,
        )
        self._serving = make_serving(self._pool, server_config)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Ray calls it after the constructor."""
        return AsgiBodies(make_app(self._serving))

    def check_health(self) -> None:
        """Raises a RuntimeError if the front takes no requests any more."""
        if self._pool is None or not self._pool.is_healthy:
            raise RuntimeError("the front has stopped")

    async def __del__(self) -> None:
        """Ray calls it when the requests of a front that is to end have ended."""
        if self._pool is not None:
            await self._pool.shutdown()
