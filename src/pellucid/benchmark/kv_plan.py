"""The KV cache that workloads need, and whether they fit the model and the engine's limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.backends.base import Backend
from pellucid.benchmark.workloads import Workload
from pellucid.facts.formulas import BlockNeeds
from pellucid.facts.kv_groups import block_needs
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.memory.memory_plan import in_gib


@dataclass(frozen=True)
class KVPlan:
    """A cache for one workload after the other."""

    num_blocks: int
    bytes_per_block: int  # of all layers of a group
    block_needs: BlockNeeds

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block


def plan_kv_cache(
    workloads: Sequence[Workload],
    engine_config: EngineConfig,
    config: ModelConfig,
    backend: Backend,
) -> KVPlan:
    """The cache that the largest workload needs.

    Raises:
        ValueError: a workload is longer than the model's context, larger than a step or does not fit
            the memory that the user allows.
    """
    for workload in workloads:
        _check_limits(workload, engine_config, config)
    block_size = engine_config.block_size
    # The positions before a workload's depth are stored in one step.
    most = max(workload.num_positions for workload in workloads)
    needs = block_needs(config, block_size, max(most, engine_config.max_num_batched_tokens))
    num_blocks = {
        workload: workload.batch * needs.most(workload.num_positions) for workload in workloads
    }
    largest = max(num_blocks, key=lambda workload: num_blocks[workload])
    bytes_per_block = backend.kv_bytes_per_block(config, block_size, engine_config.kv_cache_dtype)
    plan = KVPlan(num_blocks[largest], bytes_per_block, needs)
    allowed = engine_config.kv_cache_memory
    if allowed is not None and plan.num_bytes > allowed:
        raise ValueError(
            f"{largest.test}: needs {in_gib(plan.num_bytes)} of KV cache; kv_cache_memory={allowed} gives"
            f" {in_gib(allowed)}"
        )
    return plan


def _check_limits(workload: Workload, engine_config: EngineConfig, config: ModelConfig) -> None:
    limit = config.context_length
    if engine_config.max_model_len is not None:
        limit = min(limit, engine_config.max_model_len)
    if workload.num_positions > limit:
        raise ValueError(
            f"{workload.test}: needs {workload.num_positions} positions for one request; the context"
            f" has {limit}"
        )
    if workload.batch > engine_config.max_num_batched_tokens:
        raise ValueError(
            f"{workload.test}: a step has at most max_num_batched_tokens="
            f"{engine_config.max_num_batched_tokens} tokens"
        )
