"""What computes the answers of a server: one engine, or a pool of replicas."""

from typing import TYPE_CHECKING, TypeAlias

from pellucid.async_engine import AsyncLLMEngine

if TYPE_CHECKING:  # most servers have one engine, and need no pool
    from pellucid.cluster.replica_pool import ReplicaPool

ServedEngine: TypeAlias = "AsyncLLMEngine | ReplicaPool"
