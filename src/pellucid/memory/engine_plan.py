"""The plan of an engine: the sizes of its memory by the facts of its models, whether they are loaded or not."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from pellucid.backends.base import Backend
from pellucid.execution.state_pieces import num_pieces
from pellucid.facts.formulas import state_bytes
from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.kv_groups import block_needs, open_key_bytes, share_of_heads
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig, block_sizes
from pellucid.memory.memory_plan import (
    MemoryNeeds,
    MemoryPlan,
    Room,
    StageNeeds,
    blocks_for,
    limit_blocks,
    plan_memory,
)
from pellucid.scheduling.open_keys import OpenSlots
from pellucid.scheduling.state_pool import StatePool

LOGIT_BYTES = 4
# Rows of logits in a step beside one for each request: for prompt_logprobs and drafts.
MAX_EXTRA_LOGITS_BYTES = 64 << 20
MAX_SNAPSHOT_BYTES = 512 << 20  # snapshots of recurrent states
MAX_PENDING_STATES = 2  # snapshots that may wait for the disk, beside blocks
MAX_SPARE_BYTES = 256 << 20  # copies of recurrent states for steps with drafts


@dataclass(frozen=True)
class ModelNeeds:
    """What a plan takes of a model.

    Args:
        weight_bytes: of all machines together.
        scratch_bytes: of activations between the ops of the largest step, of all machines together.
        elsewhere: what of the model lies on other machines; none: it is all here.
        own_bytes_per_block: of a block, how many bytes lie here, if there are other machines.
    """

    config: ModelConfig
    backend: Backend
    weight_bytes: int
    scratch_bytes: int
    elsewhere: tuple[StageNeeds, ...] = ()
    own_bytes_per_block: int = 0


class EngineModels(Struct, frozen=True):
    """The models of an engine.

    Args:
        draft: that guesses its tokens, and has blocks for as many texts; None: there is none.
        has_drafts: whether requests may have drafts; these need spare slots for recurrent states.
    """

    model: ModelNeeds
    draft: ModelNeeds | None = None
    has_drafts: bool = False


class StateSlots(NamedTuple):
    """How many slots of recurrent states there are. Each has room for the open keys of its sequence, too.

    Attributes:
        requests: for requests.
        snapshots: for snapshots of prefixes.
        spares: for copies of states that are made before steps with drafts.
    """

    requests: int
    snapshots: int
    spares: int


class CachePlan(Struct, frozen=True):
    """The KV cache of one model.

    Args:
        num_blocks: of all groups.
        state_slots: of recurrent states; None: the model has none.
        open_slots: of open keys alone; None: the format has none, or the model has recurrent states.
    """

    num_blocks: int
    state_slots: StateSlots | None
    open_slots: OpenSlots | None

    @property
    def num_states(self) -> int:
        """Slots that the arrays have, at least one."""
        return max(1, _num_slots(self.state_slots, self.open_slots))

    def state_pool(self) -> StatePool | None:
        """The scheduler's record of the slots of recurrent states; None: the model has none."""
        return None if self.state_slots is None else StatePool(*self.state_slots)


@dataclass(frozen=True)
class EnginePlan:
    """The sizes of an engine.

    Args:
        draft_cache: the draft model's; None: there is none.
        max_pending_blocks: most blocks that wait for the disk; as many may have been read and wait for their request.
        max_extra_logits: rows of logits that a step may have beside one for each request.
        max_num_seqs: most requests that run at the same time.
    """

    models: EngineModels
    memory: MemoryPlan
    cache: CachePlan
    draft_cache: CachePlan | None
    max_pending_blocks: int
    max_extra_logits: int
    max_num_seqs: int

    @property
    def num_ranks(self) -> int:
        """Processes that compute each step together: the plan is that of each of them."""
        return self.models.model.backend.weights.num_ranks

    @property
    def num_kv_shares(self) -> int:
        """Into which the kv-heads are divided among these processes; 1: each has the whole KV cache."""
        model = self.models.model
        return model.backend.kv_shares(model.config)

    def of_machines(self) -> "dict[str, MemoryPlan]":
        """The plan of each machine, by its name, if there are several; that of this machine at the end."""
        stages = self.models.model.elsewhere
        if not stages:
            return {}
        num_states = _num_slots(self.cache.state_slots, self.cache.open_slots)
        plans = {
            stage.name: replace(
                self.memory,
                weights=stage.weights,
                scratch=stage.scratch,
                bytes_per_block=stage.bytes_per_block,
                states=num_states * stage.bytes_per_state,
                available=stage.available,
            )
            for stage in stages
        }
        memory, others = self.memory, plans.values()
        available = None
        if memory.available is not None:
            available = memory.available - sum(each.available or 0 for each in others)
        plans["this machine"] = replace(
            memory,
            weights=memory.weights - sum(each.weights for each in others),
            scratch=memory.scratch - sum(each.scratch for each in others),
            bytes_per_block=memory.bytes_per_block - sum(each.bytes_per_block for each in others),
            states=memory.states - sum(each.states for each in others),
            available=available,
        )
        return plans

    def num_requests(self, num_positions: int) -> int:
        """Requests of so many positions each that run together, none of them preempted."""
        blocks_per_request = self.memory.block_needs.most(num_positions)
        return min(self.max_num_seqs, self.memory.num_blocks // blocks_per_request)


def max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    """Tokens of the longest sequence.

    Raises:
        ValueError: the user asks for more than the model's limit.
    """
    limit = model_config.context_length
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise ValueError(
            f"max_model_len={config.max_model_len}: the model's own limit is {limit} tokens"
        )
    return config.max_model_len


def longest_model_len(config: EngineConfig, models: EngineModels, available: int) -> int:
    """The most tokens of a sequence for which there is room: `max_model_len`, or less. Arguments are those of
    `plan_engine`."""
    needs = _EngineNeeds(config, models)
    most = max_model_len(config, models.model.config)
    limit = limit_blocks(config, needs.memory_needs(most), available)
    return most if limit is None else needs.own.block_needs.longest(limit.num_blocks, most)


def plan_engine(config: EngineConfig, models: EngineModels, available: int | None) -> EnginePlan:
    """Plans the memory of an engine.

    Args:
        available: bytes that the process can take beside the weights; None: unknown.

    Raises:
        ValueError: the backend or the memory does not allow a setting.
    """
    needs = _EngineNeeds(config, models)
    longest = max_model_len(config, models.model.config)
    plan = plan_memory(config, needs.memory_needs(longest), longest, available)
    draft_cache = None
    if needs.draft is not None:
        num_draft_blocks = ceil(plan.num_blocks * needs.draft_blocks_per_block(longest))
        draft_cache = CachePlan(num_draft_blocks, needs.draft.state_slots, needs.draft.open_slots)
        # The draft model's cache counts as scratch.
        plan = replace(
            plan,
            bytes_per_block=needs.own.bytes_per_block,
            scratch=plan.scratch + needs.draft.bytes_per_block * num_draft_blocks,
        )
    return EnginePlan(
        models,
        plan,
        CachePlan(plan.num_blocks, needs.own.state_slots, needs.own.open_slots),
        draft_cache,
        needs.max_pending_blocks,
        needs.max_extra_logits,
        config.max_num_seqs,
    )


class _CacheNeeds:
    """What the KV cache of a model takes.

    Attributes:
        block_needs: how many blocks a request holds.
        bytes_per_block: of all groups.
        state_bytes: of all slots of recurrent states and open keys.
        area_bytes: of the open keys of the groups that a long step completes.
        elsewhere: what of the cache, and of the model's scratch, lies on other machines.
    """

    def __init__(
        self, config: EngineConfig, model: ModelNeeds, state_slots: StateSlots | None
    ) -> None:
        self.state_slots = state_slots
        self.open_slots = _open_slots(config, model.config)
        self.block_needs = block_needs(
            model.config, config.block_size, config.max_num_batched_tokens
        )
        self.bytes_per_block = _bytes_per_block(config, model)
        num_states = _num_slots(state_slots, self.open_slots)
        self.state_bytes = num_states * _slot_bytes(config, model)
        self.area_bytes = model.backend.open_area_bytes(model.config, config.kv_cache_dtype)
        self.elsewhere = tuple(
            Room(
                f" of {stage.name}",
                stage.available,
                stage.scratch + num_states * stage.bytes_per_state,
                stage.bytes_per_block,
            )
            for stage in model.elsewhere
        )


class _EngineNeeds:
    """What the models of an engine take beside blocks, and how large blocks are.

    Attributes:
        own: the model's cache.
        draft: the draft model's; None: there is none.
        max_pending_blocks, max_extra_logits: as in `EnginePlan`.
    """

    def __init__(self, config: EngineConfig, models: EngineModels) -> None:
        self._config = config
        self._models = models
        model = models.model
        self.own = _CacheNeeds(config, model, _state_slots(config, models))
        self.draft = None
        if models.draft is not None:
            slots = _draft_state_slots(config, models.draft)
            self.draft = _CacheNeeds(config, models.draft, slots)
        self.max_pending_blocks = _max_pending_blocks(config, model, self.own)
        self.max_extra_logits = _max_extra_logits(config, model.config)

    def memory_needs(self, max_model_len: int) -> MemoryNeeds:
        """The bytes of a block are those of the model's and of the draft model's that go with it."""
        config, model, draft = self._config, self._models.model, self._models.draft
        weight_bytes, bytes_per_block = model.weight_bytes, self.own.bytes_per_block
        scratch = _scratch_bytes(config, model, self.max_extra_logits) + self.own.area_bytes
        if config.prefix_store is not None:
            num_shares = model.backend.kv_shares(model.config)
            scratch += 2 * self.max_pending_blocks * num_shares * bytes_per_block
        if draft is not None:
            assert self.draft is not None
            weight_bytes += draft.weight_bytes
            scratch += _scratch_bytes(config, draft, 0)
            scratch += self.draft.state_bytes + self.draft.area_bytes
            share = self.draft_blocks_per_block(max_model_len)
            bytes_per_block += ceil(self.draft.bytes_per_block * share)
        return MemoryNeeds(
            weight_bytes,
            scratch,
            bytes_per_block,
            _other_formats(config, model),
            self.own.block_needs.windows,
            self.own.state_bytes,
            self.own.elsewhere,
        )

    def draft_blocks_per_block(self, max_model_len: int) -> Fraction:
        """Blocks of the draft model's cache for each block of the model's, so that both hold as many texts of any
        length up to `max_model_len`."""
        assert self.draft is not None
        own, drafts = self.own.block_needs, self.draft.block_needs
        # Between the lengths at which a group holds its most blocks, the ratio only rises or only falls.
        turns = {
            each.block_size * each.most_of_group(max_model_len, window)
            for each in (own, drafts)
            for window in each.windows
        }
        lengths = {own.block_size, *turns}
        return max(Fraction(drafts.most(length), own.most(length)) for length in lengths)


def _max_pending_blocks(config: EngineConfig, model: ModelNeeds, cache: _CacheNeeds) -> int:
    # All blocks that a step can fill may wait when the next step ends.
    num_blocks = blocks_for(config.max_num_batched_tokens, config.block_size) + config.max_num_seqs
    num_blocks *= len(cache.block_needs.windows)
    if model.config.states:
        num_blocks += MAX_PENDING_STATES * num_pieces(
            _slot_bytes(config, model), cache.bytes_per_block
        )
    return num_blocks


def _state_slots(config: EngineConfig, models: EngineModels) -> StateSlots | None:
    """The numbers of slots. There are at most as many slots for snapshots, and as many spare slots, as requests
    that can run."""
    model = models.model
    if not model.config.states:
        return None
    num_bytes, most = _slot_bytes(config, model), config.max_num_seqs
    num_snapshots = num_spares = 0
    if config.enable_prefix_caching and config.use_kv_cache:
        num_snapshots = min(most, max(1, MAX_SNAPSHOT_BYTES // num_bytes))
    if models.has_drafts and config.use_kv_cache:
        num_spares = min(most, max(1, MAX_SPARE_BYTES // num_bytes))
    return StateSlots(most, num_snapshots, num_spares)


def _draft_state_slots(config: EngineConfig, draft: ModelNeeds) -> StateSlots | None:
    """Slots for as many requests as may have drafts of the draft model, and a spare one for each."""
    if not draft.config.states:
        return None
    fitting = MAX_SPARE_BYTES // _slot_bytes(config, draft)
    num_slots = min(config.max_num_seqs, max(1, fitting))
    return StateSlots(num_slots, 0, num_slots)


def _open_slots(config: EngineConfig, model: ModelConfig) -> OpenSlots | None:
    """A slot of open keys for each request that runs, and one for a look at a request."""
    group_positions = find_kv_format(config.kv_cache_dtype).open_positions
    if model.states or not group_positions:
        return None
    return OpenSlots(config.max_num_seqs + 1, group_positions)


def _num_slots(state_slots: StateSlots | None, open_slots: OpenSlots | None) -> int:
    if state_slots is not None:
        return sum(state_slots)
    return 0 if open_slots is None else open_slots.num_slots


def _slot_bytes(config: EngineConfig, model: ModelNeeds) -> int:
    """Of a slot: the recurrent states and the open keys of a sequence."""
    own_heads = share_of_heads(model.config, model.backend.kv_shares(model.config))
    return state_bytes(model.config) + open_key_bytes(own_heads, config.kv_cache_dtype)


def _bytes_per_block(config: EngineConfig, model: ModelNeeds) -> int:
    if model.elsewhere:
        return model.own_bytes_per_block + sum(each.bytes_per_block for each in model.elsewhere)
    return model.backend.kv_bytes_per_block(model.config, config.block_size, config.kv_cache_dtype)


def _other_formats(config: EngineConfig, model: ModelNeeds) -> dict[str, int]:
    """Bytes per block in the smaller formats of the KV cache, which an error suggests."""
    if model.elsewhere:
        return {}
    return {
        dtype: model.backend.kv_bytes_per_block(model.config, config.block_size, dtype)
        for dtype in ("int8", "int8,int4", "int4")
        if dtype != config.kv_cache_dtype and config.block_size in block_sizes(dtype)
    }


def _max_extra_logits(config: EngineConfig, model: ModelConfig) -> int:
    fitting = MAX_EXTRA_LOGITS_BYTES // (model.vocab_size * LOGIT_BYTES)
    return max(1, min(fitting, config.max_step_tokens(model.context_length)))


def _scratch_bytes(config: EngineConfig, model: ModelNeeds, max_extra_logits: int) -> int:
    """Bytes of the activations between ops and of the rows of logits, in the largest step."""
    # Each is of a token of the step.
    max_rows = min(
        config.max_num_seqs + max_extra_logits, config.max_step_tokens(model.config.context_length)
    )
    return model.scratch_bytes + max_rows * model.config.vocab_size * LOGIT_BYTES
