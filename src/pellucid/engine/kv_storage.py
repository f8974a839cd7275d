"""KV storage: the KV cache, the swap file and the prefix store, of the planned sizes."""

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Struct

from pellucid.backends.ops import KVCache
from pellucid.execution.block_transfer import BlockTransfer, SwapFile
from pellucid.execution.state_pieces import num_pieces
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.memory.engine_plan import (
    CachePlan,
    EngineModels,
    EnginePlan,
    ModelNeeds,
    plan_engine,
)
from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.offload import Offload

if TYPE_CHECKING:  # few engines have one
    from pellucid.execution.prefix_store import PrefixStore


class KVStorage(Struct, frozen=True):
    """The KV cache, and the stores to which its blocks move.

    Args:
        prefix_store: blocks on disk or on a server; None without `EngineConfig.prefix_store`.
        swap_file: blocks of preempted requests; None without `swap_space`.
        draft_kv_cache: the draft model's; None: there is no draft model.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a sequence, rounded up.
    """

    plan: EnginePlan
    kv_cache: KVCache
    prefix_store: "PrefixStore | None"
    swap_file: SwapFile | None
    transfer: BlockTransfer
    draft_kv_cache: KVCache | None
    blocks_per_state: int

    def offload(self) -> Offload | None:
        """The scheduler's record of what is outside of the pools; None: nothing can be."""
        if self.swap_file is None and self.prefix_store is None:
            return None
        num_swap_slots = 0 if self.swap_file is None else self.swap_file.num_slots
        max_read_blocks = 0 if self.prefix_store is None else self.plan.max_pending_blocks
        return Offload(num_swap_slots, max_read_blocks, self.blocks_per_state)

    def close(self) -> None:
        """Writes the blocks that wait for the disk, and deletes the swap file."""
        if self.prefix_store is not None:
            self.prefix_store.close()
        if self.swap_file is not None:
            self.swap_file.close()


def make_kv_storage(
    config: EngineConfig,
    model: LoadedModel,
    bus: EventBus,
    draft: LoadedModel | None,
    has_drafts: bool,
) -> KVStorage:
    """Plans the memory, and creates the KV cache and its stores. The system provides the cache's memory later,
    when blocks are written.

    Args:
        bus: gets warnings about files of the prefix cache.
        draft, has_drafts: as in `EngineModels`.

    Raises:
        ValueError: the backend or the memory does not allow a setting.
        OSError: `prefix_store` cannot be made or read.
    """
    draft_needs = None if draft is None else _needs_of(draft, config)
    models = EngineModels(_needs_of(model, config), draft_needs, has_drafts)
    plan = plan_engine(config, models, _available_memory(model))
    kv_cache = _make_kv_cache(config, model, plan.cache)
    bytes_per_block = kv_cache.bytes_per_block  # of all processes together
    blocks_per_state = 0
    if model.config.states:
        blocks_per_state = num_pieces(kv_cache.bytes_per_state, bytes_per_block)
    prefix_store = None
    if config.prefix_store is not None:
        # Imported here: few engines have one.
        from pellucid.engine.prefix_storage import open_prefix_store

        prefix_store = open_prefix_store(
            config, model, bytes_per_block, plan.max_pending_blocks, bus, blocks_per_state
        )
    swap_file = _make_swap_file(config, bytes_per_block)
    draft_kv_cache = None
    if draft is not None and plan.draft_cache is not None:
        draft_kv_cache = _make_kv_cache(config, draft, plan.draft_cache)
    return KVStorage(
        plan,
        kv_cache,
        prefix_store,
        swap_file,
        BlockTransfer(kv_cache, prefix_store, swap_file),
        draft_kv_cache,
        blocks_per_state,
    )


def _needs_of(model: LoadedModel, config: EngineConfig) -> ModelNeeds:
    scratch = model.decoder.scratch_bytes(config.max_step_tokens(model.config.context_length))
    needs = ModelNeeds(model.config, model.backend, model.weight_bytes, scratch)
    if (parts := model.elsewhere) is None:
        return needs
    return replace(needs, elsewhere=parts.needs, own_bytes_per_block=parts.own_bytes_per_block)


def _available_memory(model: LoadedModel) -> int | None:
    """For which the KV cache is planned; None: unknown."""
    own = model.backend.available_memory()
    return own if model.elsewhere is None else model.elsewhere.available_memory(own)


def _make_kv_cache(config: EngineConfig, model: LoadedModel, plan: CachePlan) -> KVCache:
    return model.make_kv_cache(
        plan.num_blocks, config.block_size, config.kv_cache_dtype, plan.num_states
    )


def _make_swap_file(config: EngineConfig, bytes_per_block: int) -> SwapFile | None:
    if config.swap_space == 0:
        return None
    if config.swap_space < bytes_per_block:
        raise ValueError(
            f"swap_space={config.swap_space}: must hold a block of {bytes_per_block} bytes;"
            " give a number of bytes, or text such as '4GiB'"
        )
    try:
        return SwapFile(config.swap_space // bytes_per_block, bytes_per_block)
    except OSError as error:
        raise ValueError(
            f"swap_space={config.swap_space}: {tempfile.gettempdir()}: {error.strerror}; TMPDIR names"
            " another directory"
        ) from None
