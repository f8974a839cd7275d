"""A Ray Serve application: `serve run pellucid.serve_ray:build model=MODEL num_replicas=2`.

Ray starts, places, watches, scales and updates the replicas; the router of `pellucid.cluster` chooses among them.
"""

from pellucid.serve_ray.application import build

__all__ = ["build"]
