"""How many engines there should be, by what they have to do."""

from math import ceil
from typing import Any


class ReplicasNeeded:
    """Ray Serve's autoscaling policy: by unfinished requests and by KV blocks in use, whichever needs more engines.

    Args:
        target_requests: unfinished requests for each engine.
        target_kv_usage: share of its KV blocks in use.
    """

    def __init__(self, target_requests: float, target_kv_usage: float) -> None:
        self._targets = {"requests": target_requests, "kv_usage": target_kv_usage}

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Ray applies its limits and delays afterwards.

        Args:
            context: Ray's `AutoscalingContext`; its metrics are those of `EngineReplica.record_autoscaling_stats`.
        """
        metrics = context.aggregated_metrics or {}
        needed = [
            ceil(sum(metrics[name].values()) / target)
            for name, target in self._targets.items()
            if metrics.get(name)
        ]
        return max(needed, default=context.target_num_replicas), {}
