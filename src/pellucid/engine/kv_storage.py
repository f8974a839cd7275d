"""KV storage: the KV cache, the swap file and the prefix store, sized by the memory plan."""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import NamedTuple

from pellucid.backends.ops import KVCache
from pellucid.config import EngineConfig
from pellucid.event_bus import EventBus
from pellucid.events import Warn
from pellucid.execution.block_directory import BlockDirectory
from pellucid.execution.block_file import BlockFileFormat
from pellucid.execution.block_transfer import BlockTransfer
from pellucid.execution.prefix_fingerprint import prefix_fingerprint
from pellucid.execution.prefix_store import DiskPrefixStore
from pellucid.execution.state_pieces import num_pieces
from pellucid.execution.swap_file import SwapFile
from pellucid.formulas import state_bytes
from pellucid.kv_groups import block_needs
from pellucid.loaded_model import LoadedModel
from pellucid.loading.checksums import weights_identity
from pellucid.memory.memory_plan import MemoryNeeds, MemoryPlan, blocks_for, plan_memory
from pellucid.memory.process_memory import available_memory
from pellucid.scheduling.offloaded_blocks import OffloadedBlocks
from pellucid.scheduling.state_pool import StatePool

LOGIT_BYTES = 4
# Rows of logits in a step beside one for each request: for prompt_logprobs and drafts.
MAX_EXTRA_LOGITS_BYTES = 64 << 20
MAX_SNAPSHOT_BYTES = 512 << 20  # snapshots of recurrent states
MAX_PENDING_STATES = 2  # snapshots that may wait for the disk, beside blocks
MAX_SPARE_BYTES = 256 << 20  # copies of recurrent states for steps with drafts

_log = logging.getLogger(__name__)


class StateSlots(NamedTuple):
    """How many slots of recurrent states there are.

    Attributes:
        requests: for requests.
        snapshots: for snapshots of prefixes.
        spares: for copies of states that are made before steps with drafts.
    """

    requests: int
    snapshots: int
    spares: int


@dataclass(frozen=True)
class KVStorage:
    """The KV cache, and the stores to which its blocks move.

    Args:
        plan: the engine's memory plan.
        kv_cache: the arrays.
        prefix_store: blocks on disk; None without `prefix_cache_dir`.
        swap_file: blocks of preempted requests; None without `swap_space`.
        transfer: moves blocks between them.
        max_read_blocks: most blocks that are being read from `prefix_store`, or wait for their request.
        max_extra_logits: rows of logits that a step may have beside one for each request.
        draft_kv_cache: the draft model's; None: there is no draft model.
        num_draft_blocks: of `draft_kv_cache`.
        state_slots: the slots of recurrent states; None: the model has none.
        draft_state_slots: the same of the draft model.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a sequence, rounded up.
    """

    plan: MemoryPlan
    kv_cache: KVCache
    prefix_store: DiskPrefixStore | None
    swap_file: SwapFile | None
    transfer: BlockTransfer
    max_read_blocks: int
    max_extra_logits: int
    draft_kv_cache: KVCache | None = None
    num_draft_blocks: int = 0
    state_slots: StateSlots | None = None
    draft_state_slots: StateSlots | None = None
    blocks_per_state: int = 0

    def state_pool(self) -> StatePool | None:
        """The scheduler's record of the slots of recurrent states; None: the model has none."""
        return None if self.state_slots is None else StatePool(*self.state_slots)

    def draft_state_pool(self) -> StatePool | None:
        """The same for the draft model."""
        return None if self.draft_state_slots is None else StatePool(*self.draft_state_slots)

    def offloaded_blocks(self) -> OffloadedBlocks:
        """The scheduler's record of blocks outside of the pool."""
        num_swap_slots = 0 if self.swap_file is None else self.swap_file.num_slots
        return OffloadedBlocks(num_swap_slots, self.max_read_blocks, self.blocks_per_state)

    def close(self) -> None:
        """Writes the blocks that wait for the disk, and deletes the swap file."""
        if self.prefix_store is not None:
            self.prefix_store.close()
        if self.swap_file is not None:
            self.swap_file.close()


def make_kv_storage(
    config: EngineConfig,
    model: LoadedModel,
    max_model_len: int,
    bus: EventBus,
    draft: LoadedModel | None = None,
    has_drafts: bool = False,
) -> KVStorage:
    """Plans the memory, and creates the KV cache and its stores. The system provides the cache's memory later,
    when blocks are written.

    Args:
        config: the user's settings.
        model: the loaded model.
        max_model_len: tokens of the longest sequence.
        bus: gets warnings about files of the prefix cache.
        draft: the draft model, whose KV cache has blocks for as many texts as the model's.
        has_drafts: whether requests may have drafts; these need spare slots for recurrent states.

    Raises:
        ValueError: the backend or the memory does not allow a setting.
        OSError: `prefix_cache_dir` cannot be made or read.
    """
    needs = _CacheNeeds(config, model, _state_slots(config, model, has_drafts))
    draft_needs = None
    if draft is not None:
        draft_needs = _CacheNeeds(config, draft, _draft_state_slots(config, draft))
    max_pending = _max_pending_blocks(needs)
    max_extra_logits = _max_extra_logits(config, model)
    scratch = _scratch_bytes(config, model, max_extra_logits)
    if config.prefix_cache_dir is not None:
        scratch += 2 * max_pending * needs.bytes_per_block
    plan, num_draft_blocks = _plan_memory(needs, draft_needs, scratch, max_model_len)
    kv_cache = needs.make_kv_cache(plan.num_blocks)
    blocks_per_state = 0
    if model.config.states:
        blocks_per_state = num_pieces(kv_cache.bytes_per_state, needs.bytes_per_block)
    prefix_store = _open_prefix_store(
        config, model, needs.bytes_per_block, max_pending, _reporter(bus), blocks_per_state
    )
    swap_file = _make_swap_file(config, needs.bytes_per_block)
    return KVStorage(
        plan,
        kv_cache,
        prefix_store,
        swap_file,
        BlockTransfer(kv_cache, prefix_store, swap_file),
        0 if prefix_store is None else max_pending,
        max_extra_logits,
        None if draft_needs is None else draft_needs.make_kv_cache(num_draft_blocks),
        num_draft_blocks,
        needs.state_slots,
        None if draft_needs is None else draft_needs.state_slots,
        blocks_per_state,
    )


class _CacheNeeds:
    """What the KV cache of a model takes.

    Attributes:
        block_needs: how many blocks a request holds.
        bytes_per_block: of all groups.
        state_bytes: of all slots of recurrent states.
    """

    def __init__(
        self, config: EngineConfig, model: LoadedModel, state_slots: StateSlots | None
    ) -> None:
        self.config = config
        self.model = model
        self.state_slots = state_slots
        self.block_needs = block_needs(
            model.config, config.block_size, config.max_num_batched_tokens
        )
        self.windows = self.block_needs.windows
        self.bytes_per_block = model.backend.kv_bytes_per_block(
            model.config, config.block_size, config.kv_cache_dtype
        )
        self._num_states = 1 if state_slots is None else sum(state_slots)
        self.state_bytes = self._num_states * state_bytes(model.config)

    def make_kv_cache(self, num_blocks: int) -> KVCache:
        config = self.config
        return self.model.backend.make_kv_cache(
            self.model.config,
            num_blocks,
            config.block_size,
            config.kv_cache_dtype,
            self._num_states,
        )


def _plan_memory(
    needs: _CacheNeeds, draft_needs: _CacheNeeds | None, scratch: int, max_model_len: int
) -> tuple[MemoryPlan, int]:
    """Plans the memory of a model, and of its draft model.

    Args:
        scratch: bytes, of the model alone.

    Returns:
        The plan, and the number of the draft model's blocks.
    """
    config, model = needs.config, needs.model
    weight_bytes, bytes_per_block = model.weight_bytes, needs.bytes_per_block
    draft_blocks_per_block = Fraction(0)
    if draft_needs is not None:
        draft_blocks_per_block = _draft_blocks_per_block(needs, draft_needs, max_model_len)
        weight_bytes += draft_needs.model.weight_bytes
        bytes_per_block += ceil(draft_needs.bytes_per_block * draft_blocks_per_block)
        scratch += _scratch_bytes(config, draft_needs.model, 0) + draft_needs.state_bytes
    plan = plan_memory(
        config,
        MemoryNeeds(
            weight_bytes,
            scratch,
            bytes_per_block,
            _other_formats(config, model),
            needs.windows,
            needs.state_bytes,
        ),
        max_model_len,
        available_memory(),
    )
    if draft_needs is None:
        return plan, 0
    num_draft_blocks = ceil(plan.num_blocks * draft_blocks_per_block)
    # The plan's bytes_per_block is the model's alone: the draft model's cache counts as scratch.
    plan = replace(
        plan,
        bytes_per_block=needs.bytes_per_block,
        scratch=scratch + draft_needs.bytes_per_block * num_draft_blocks,
    )
    return plan, num_draft_blocks


def _draft_blocks_per_block(
    needs: _CacheNeeds, draft_needs: _CacheNeeds, max_model_len: int
) -> Fraction:
    """Blocks of the draft model's cache for each block of the model's, so that both hold as many texts of any length
    up to `max_model_len`."""
    own, drafts = needs.block_needs, draft_needs.block_needs
    # Between the lengths at which a group holds its most blocks, the ratio only rises or only falls.
    turns = {
        each.block_size * each.most_of_group(max_model_len, window)
        for each in (own, drafts)
        for window in each.windows
    }
    lengths = {own.block_size, *turns}
    return max(Fraction(drafts.most(length), own.most(length)) for length in lengths)


def _max_pending_blocks(needs: _CacheNeeds) -> int:
    """The most blocks that wait for the disk; as many may have been read and wait for their request."""
    # All blocks that a step can fill may wait when the next step ends.
    config = needs.config
    num_blocks = blocks_for(config.max_num_batched_tokens, config.block_size) + config.max_num_seqs
    num_blocks *= len(needs.windows)
    if needs.model.config.states:
        per_state = num_pieces(state_bytes(needs.model.config), needs.bytes_per_block)
        num_blocks += MAX_PENDING_STATES * per_state
    return num_blocks


def _state_slots(config: EngineConfig, model: LoadedModel, has_drafts: bool) -> StateSlots | None:
    """The numbers of slots. There are at most as many slots for snapshots, and as many spare slots, as requests
    that can run."""
    if not model.config.states:
        return None
    num_bytes, most = state_bytes(model.config), config.max_num_seqs
    num_snapshots = num_spares = 0
    if config.enable_prefix_caching and config.use_kv_cache:
        num_snapshots = min(most, max(1, MAX_SNAPSHOT_BYTES // num_bytes))
    if has_drafts and config.use_kv_cache:
        num_spares = min(most, max(1, MAX_SPARE_BYTES // num_bytes))
    return StateSlots(most, num_snapshots, num_spares)


def _draft_state_slots(config: EngineConfig, draft: LoadedModel) -> StateSlots | None:
    """Slots for as many requests as may have drafts of the draft model, and a spare one for each."""
    if not draft.config.states:
        return None
    fitting = MAX_SPARE_BYTES // state_bytes(draft.config)
    num_slots = min(config.max_num_seqs, max(1, fitting))
    return StateSlots(num_slots, 0, num_slots)


def _other_formats(config: EngineConfig, model: LoadedModel) -> dict[str, int]:
    """Bytes per block in the smaller formats of the KV cache, which an error suggests."""
    return {
        dtype: model.backend.kv_bytes_per_block(model.config, config.block_size, dtype)
        for dtype in ("int8", "int4")
        if dtype != config.kv_cache_dtype
    }


def _max_extra_logits(config: EngineConfig, model: LoadedModel) -> int:
    fitting = MAX_EXTRA_LOGITS_BYTES // (model.config.vocab_size * LOGIT_BYTES)
    return max(1, min(fitting, config.max_num_batched_tokens))


def _scratch_bytes(config: EngineConfig, model: LoadedModel, max_extra_logits: int) -> int:
    """Bytes of the activations between ops and of the rows of logits, in the largest step."""
    between_ops = model.decoder.scratch_bytes(config.max_num_batched_tokens)
    max_rows = config.max_num_seqs + max_extra_logits
    return between_ops + max_rows * model.config.vocab_size * LOGIT_BYTES


def _open_prefix_store(
    config: EngineConfig,
    model: LoadedModel,
    bytes_per_block: int,
    max_pending: int,
    report: Callable[[str], None],
    blocks_per_state: int,
) -> DiskPrefixStore | None:
    if config.prefix_cache_dir is None:
        return None
    fingerprint = prefix_fingerprint(
        config, model.config, weights_identity(model.path), model.backend
    )
    file_format = BlockFileFormat(fingerprint, config.block_size, bytes_per_block)
    directory = BlockDirectory(
        Path(config.prefix_cache_dir).expanduser(),
        fingerprint,
        file_format.file_bytes,
        config.prefix_cache_bytes,
    )
    return DiskPrefixStore(directory, file_format, max_pending, report, blocks_per_state)


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


def _reporter(bus: EventBus) -> Callable[[str], None]:
    def report(message: str) -> None:
        _log.warning(message)
        if bus.active:
            bus.emit(Warn("prefix_cache", message))

    return report
