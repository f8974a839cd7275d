"""What holds keys and values for an engine, put together from its configuration."""

from dataclasses import dataclass

from pellucid.available_memory import available_memory
from pellucid.backends.base import KVCache
from pellucid.config import EngineConfig
from pellucid.execution.block_transfer import BlockTransfer
from pellucid.loaded_model import LoadedModel
from pellucid.memory import MemoryNeeds, MemoryPlan, plan_memory

LOGIT_BYTES = 4


@dataclass(frozen=True)
class KVStorage:
    """The KV cache and what its blocks move through.

    Args:
        plan: where the engine's memory goes.
        kv_cache: the arrays.
        transfer: moves blocks between them all.
    """

    plan: MemoryPlan
    kv_cache: KVCache
    transfer: BlockTransfer


def make_kv_storage(config: EngineConfig, model: LoadedModel, max_model_len: int) -> KVStorage:
    """Plans the memory and makes what the plan says. Nothing of the cache is touched.

    Args:
        config: the user's knobs.
        model: loaded.
        max_model_len: tokens of the longest sequence.

    Raises:
        ValueError: a knob asks for what the backend or the memory cannot give.
    """
    backend = model.backend
    needs = MemoryNeeds(
        model.weight_bytes,
        _scratch_bytes(config, model),
        backend.kv_bytes_per_block(model.config, config.block_size, config.kv_cache_dtype),
    )
    plan = plan_memory(config, needs, max_model_len, available_memory())
    kv_cache = backend.make_kv_cache(
        model.config, plan.num_blocks, config.block_size, config.kv_cache_dtype
    )
    return KVStorage(plan, kv_cache, BlockTransfer(kv_cache))


def _scratch_bytes(config: EngineConfig, model: LoadedModel) -> int:
    """What lies between ops, and a row of logits for each request."""
    between_ops = model.backend.scratch_bytes(
        model.decoder, model.config, config.max_num_batched_tokens
    )
    return between_ops + config.max_num_seqs * model.config.vocab_size * LOGIT_BYTES
