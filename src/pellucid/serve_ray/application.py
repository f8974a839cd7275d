"""Builds the application: fronts that speak to clients, and engines that compute."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from pellucid.serve_ray.autoscaling import ReplicasNeeded
from pellucid.serve_ray.engine_replica import EngineReplica
from pellucid.serve_ray.front import Front
from pellucid.serve_ray.request_router import DestinationRouter
from pellucid.serve_ray.settings import Settings, parse

FRONT, ENGINE = "Front", "Engine"  # names of the deployments
# At once of a replica, of all fronts; engines and fronts have limits of their own.
MAX_CALLS = 10_000


def build(arguments: Mapping[str, object]) -> Any:
    """The application, for `serve run`, `serve deploy` and `ray.serve.run`.

    Args:
        arguments: fields of `EngineConfig` and of `Settings`.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """
    config, settings = parse(arguments)
    front = serve.deployment(
        serve.ingress()(Front),
        name=FRONT,
        num_replicas=settings.num_fronts,
        max_ongoing_requests=MAX_CALLS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": 0},
    )
    engine = serve.deployment(
        EngineReplica,
        name=ENGINE,
        max_ongoing_requests=MAX_CALLS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        request_router_config=RequestRouterConfig(request_router_class=DestinationRouter),
        **_number(settings),
    )
    return front.bind(config, settings, engine.bind(config, settings))


def _number(settings: Settings) -> dict[str, Any]:
    """How many engines there are."""
    if settings.max_replicas is None:
        return {"num_replicas": settings.num_replicas}
    targets = asdict(settings)
    policy = AutoscalingPolicy(
        policy_function=f"{ReplicasNeeded.__module__}:{ReplicasNeeded.__name__}",
        policy_kwargs={name: targets[name] for name in ("target_requests", "target_kv_usage")},
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=settings.num_replicas, max_replicas=settings.max_replicas, policy=policy
        )
    }
