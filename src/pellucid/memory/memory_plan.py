"""The memory plan: the bytes of weights (before they are read), scratch and KV cache."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pellucid.backends.quantization.formats import F32, FORMATS, MatrixFormat
from pellucid.facts.formulas import PANEL_OUTPUTS, BlockNeeds
from pellucid.inputs.config import EngineConfig
from pellucid.loading.stored_model import StoredModel

if TYPE_CHECKING:  # importing backends takes longer than counting
    from pellucid.backends.base import Backend

_SMALLER_FORMATS = ("int8", "int4")  # to suggest, of weights and of the KV cache


# -- weights ---------------------------------------------------------------------------------------


class PlannedWeights(Struct, frozen=True):
    """Bytes in memory, without the padding of kernels' layouts, which is under a percent.

    Args:
        largest: of the largest matrix, which is there twice while it is laid out: of what a rank reads of it.
    """

    total: int
    largest: int

    @property
    def while_loading(self) -> int:
        """At most, at a time."""
        return self.total + self.largest


def plan_weights(
    model: StoredModel,
    itemsize: int | None,
    quantization: str,
    with_experts: bool = True,
    num_ranks: int = 1,
) -> PlannedWeights:
    """Counts the weights of a checkpoint in the formats that they will have, without tables that stay in their
    files.

    Args:
        itemsize, num_ranks: as in `backends.base.Weights`.
        with_experts: False leaves out experts, which go to a file.
    """
    sizes = {
        name: _tensor_bytes(model, name, itemsize, quantization)
        for name in model.tensors
        if not model.names.is_unused(name)
        and not model.names.is_table(name)
        and (with_experts or not model.names.is_expert(name))
    }
    of_rank = {
        name: num_bytes // (num_ranks if _is_divided(model, name, num_ranks) else 1)
        for name, num_bytes in sizes.items()
    }
    read = (
        of_rank[name] if model.tensors.reads_rows(name) else num_bytes
        for name, num_bytes in sizes.items()
    )
    return PlannedWeights(sum(of_rank.values()), max(read))


def _is_divided(model: StoredModel, name: str, num_ranks: int) -> bool:
    """Whether each rank has a share of a tensor: of all matrices but routers and small ones."""
    shape = model.tensors.info(name).shape
    return len(shape) >= 2 and (
        model.names.is_expert(name) or shape[-2] >= PANEL_OUTPUTS * num_ranks
    )


def check_weights_fit(
    model: StoredModel, backend: "Backend", quantization: str, available: int | None
) -> PlannedWeights:
    """Plans weights and compares them with the memory before anything is read: the system ends a
    process that runs out of memory without a message.

    Args:
        available: bytes; None: unknown.

    Raises:
        ValueError: the weights need more memory than there is; says which format fits.
    """
    in_file = backend.weights.expert_reads is not None
    itemsize, num_ranks = backend.weights.itemsize, backend.weights.num_ranks

    def planned(name: str, with_experts: bool = not in_file) -> PlannedWeights:
        return plan_weights(model, itemsize, name, with_experts, num_ranks)

    weights = planned(quantization)
    if available is None or weights.while_loading <= available:
        return weights
    smaller = (
        {}
        if model.weight_format is not None
        else {
            name: planned(name).while_loading for name in _SMALLER_FORMATS if name != quantization
        }
    )
    fitting = [
        f"quantization={name!r} ({in_gib(size)})"
        for name, size in smaller.items()
        if size <= available
    ]
    without_experts = planned(quantization, with_experts=False).while_loading
    if without_experts < weights.while_loading and without_experts <= available:
        fitting.append(f"experts='mapped' ({in_gib(without_experts)}, and the experts on disk)")
    raise ValueError(
        f"{model.path}: with quantization={quantization!r} its weights take {in_gib(weights.total)}, and"
        f" {in_gib(weights.largest)} more while they are loaded; {in_gib(available)} of memory are"
        f" available: {_ways_on(fitting)}"
    )


def _tensor_bytes(model: StoredModel, name: str, itemsize: int | None, quantization: str) -> int:
    info = model.tensors.info(name)
    if len(info.shape) < 2:
        return F32.num_bytes(1, math.prod(info.shape))  # as all vectors
    if itemsize is not None:
        return math.prod(info.shape) * itemsize
    weight_format: MatrixFormat | None = FORMATS.get(quantization)
    if weight_format is None:
        weight_format = model.tensors.matrix_format(name)
    return weight_format.num_bytes(math.prod(info.shape[:-1]), info.shape[-1])


# -- KV cache --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlan:
    """The budget of one engine. Sizes are in bytes.

    Args:
        weights: of the decoder, as loading counted them.
        scratch: activations between the ops of the largest step, its logits, and blocks that wait to be written
            to the prefix store.
        bytes_per_block: of the layers of a group, K and V, scales and padding included.
        num_blocks: of the KV cache, for all groups.
        margin: left to the rest of the process and of the machine.
        available: what this process could still take when the weights were loaded; None: unknown.
        decided_by: what decided `num_blocks`, for people.
        states: slots of recurrent states and of open keys, for `max_num_seqs` sequences, and snapshots of prefixes.
    """

    weights: int
    scratch: int
    bytes_per_block: int
    num_blocks: int
    block_needs: BlockNeeds
    max_model_len: int
    margin: int
    available: int | None
    decided_by: str
    states: int

    @property
    def kv_cache(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.block_needs.block_size

    @property
    def bytes_per_position(self) -> float:
        """Of all layers."""
        return len(self.block_needs.windows) * self.bytes_per_block / self.block_size

    @property
    def num_tokens(self) -> int:
        """Positions that the KV cache holds, if none of them has left a window."""
        return self.num_blocks // len(self.block_needs.windows) * self.block_size

    @property
    def num_contexts(self) -> int:
        """Sequences of `max_model_len` tokens that fit together."""
        return self.num_blocks // self.block_needs.most(self.max_model_len)


@dataclass(frozen=True)
class StageNeeds:
    """The memory that the part of a model on another machine needs, in bytes.

    Args:
        name: for people.
        available: that it could still take when its weights were loaded; None: unknown.
        scratch: of activations between the ops of the largest step.
    """

    name: str
    available: int | None
    weights: int
    scratch: int
    bytes_per_block: int
    bytes_per_state: int


class Room(NamedTuple):
    """Memory in which KV blocks lie.

    Attributes:
        owner: for people, with "of"; empty: there is no other machine.
        available: bytes; None: unknown.
        fixed: bytes that a step and its requests take besides the KV cache.
        bytes_per_block: of a block, how many bytes lie here.
    """

    owner: str
    available: int | None
    fixed: int
    bytes_per_block: int


@dataclass(frozen=True)
class MemoryNeeds:
    """The memory that the model and its backend need, in bytes. See `MemoryPlan`.

    Args:
        windows: of each group of layers (`kv_groups`).
        other_bytes_per_block: in other formats of the KV cache, by `EngineConfig.kv_cache_dtype`: what
            an error may suggest.
        states: as in `MemoryPlan`.
        elsewhere: what of all this lies on other machines.
    """

    weights: int
    scratch: int
    bytes_per_block: int
    other_bytes_per_block: Mapping[str, int] = field(default_factory=dict)
    windows: tuple[int | None, ...] = (None,)
    states: int = 0
    elsewhere: tuple[Room, ...] = ()

    @property
    def fixed(self) -> int:
        """Bytes that a step and its requests take besides the KV cache."""
        return self.scratch + self.states

    def rooms(self, available: int | None) -> list[Room]:
        """The memory of each machine.

        Args:
            available: bytes of all machines together; None: unknown.
        """
        others = self.elsewhere
        own = None
        if available is not None:
            own = available - sum(room.available or 0 for room in others)
        fixed = self.fixed - sum(room.fixed for room in others)
        bytes_per_block = self.bytes_per_block - sum(room.bytes_per_block for room in others)
        owner = " of this machine" if others else ""
        return [*others, Room(owner, own, fixed, bytes_per_block)]


class BlockLimit(NamedTuple):
    """How many blocks of the KV cache there may be.

    Attributes:
        decided_by: for people.
        is_asked_for: whether the user's settings say the number.
    """

    num_blocks: int
    decided_by: str
    is_asked_for: bool


def limit_blocks(
    config: EngineConfig, needs: MemoryNeeds, available: int | None
) -> BlockLimit | None:
    """What settings or memory say of the number of blocks; None: nothing. Arguments are those of `plan_memory`."""
    if config.num_kv_blocks is not None:
        return BlockLimit(config.num_kv_blocks, f"num_kv_blocks={config.num_kv_blocks}", True)
    if config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // needs.bytes_per_block
        return BlockLimit(num_blocks, f"kv_cache_memory={config.kv_cache_memory}", True)
    limits = []
    for owner, there, fixed, bytes_per_block in needs.rooms(available):
        if there is not None:
            left = max(0, there - fixed - _margin(config, there))
            decided_by = (
                f"memory{owner} ({in_gib(there)} available, {in_gib(left)} left for the KV cache)"
            )
            limits.append(BlockLimit(left // bytes_per_block, decided_by, False))
    return min(limits, default=None)


def _margin(config: EngineConfig, available: int | None) -> int:
    """Bytes that are left to others."""
    return 0 if available is None else available - int(available * config.memory_utilization)


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def plan_memory(
    config: EngineConfig, needs: MemoryNeeds, max_model_len: int, available: int | None
) -> MemoryPlan:
    """Gives the KV cache the size that the user sets, or else the remaining memory.

    The remaining memory is `available` without scratch, states and margin, but no more than `max_num_seqs` sequences
    of `max_model_len` tokens can use. An unused cache costs nothing: the system provides its memory block by block,
    when tokens are stored.

    Args:
        config: `num_kv_blocks` takes precedence over `kv_cache_memory` (bytes), and that over the remaining memory;
            `memory_utilization` is the share of `available` that the engine may use.
        available: bytes that the process can still take after its weights have been loaded.

    Raises:
        ValueError: not one sequence of `max_model_len` tokens would fit, or the cache asked for would
            not fit into the available memory.
    """
    margin = _margin(config, available)
    block_needs = BlockNeeds(config.block_size, needs.windows, config.max_num_batched_tokens)
    blocks_per_context = block_needs.most(max_model_len)
    num_blocks, decided_by = config.max_num_seqs * blocks_per_context, "max_num_seqs, max_model_len"
    if (limit := limit_blocks(config, needs, available)) is not None and (
        limit.is_asked_for or limit.num_blocks < num_blocks
    ):
        num_blocks, decided_by = limit.num_blocks, limit.decided_by
    if num_blocks < blocks_per_context:
        longest = block_needs.longest(num_blocks, max_model_len)
        settings = _fitting_settings(
            config, needs, num_blocks, longest, blocks_per_context, available
        )
        raise ValueError(
            f"max_model_len={max_model_len}: one sequence takes"
            f" {in_gib(blocks_per_context * needs.bytes_per_block)} of KV cache, but {decided_by} gives"
            f" {in_gib(num_blocks * needs.bytes_per_block)}, which is {longest} tokens:"
            f" {_ways_on(settings)}"
        )
    for owner, there, fixed, bytes_per_block in needs.rooms(available):
        kv_cache = num_blocks * bytes_per_block
        if there is not None and fixed + kv_cache > there:
            fitting = (there - fixed) // bytes_per_block
            raise ValueError(
                f"{decided_by}: the KV cache would take {in_gib(kv_cache)}, but {in_gib(there)} of memory{owner} are"
                f" available, of which a step takes {in_gib(fixed)}:"
                f" {_ways_on([f'num_kv_blocks={fitting}'] if fitting >= blocks_per_context else [])}"
            )
    return MemoryPlan(
        needs.weights,
        needs.scratch,
        needs.bytes_per_block,
        num_blocks,
        block_needs,
        max_model_len,
        margin,
        available,
        decided_by,
        needs.states,
    )


def in_gib(num_bytes: int) -> str:
    """Bytes for people: 1.50 GiB, and MiB below a tenth of one."""
    if num_bytes < (1 << 30) // 10:
        return f"{num_bytes / (1 << 20):,.2f} MiB"
    return f"{num_bytes / (1 << 30):,.2f} GiB"


def _fitting_settings(
    config: EngineConfig,
    needs: MemoryNeeds,
    num_blocks: int,
    longest: int,
    blocks_per_context: int,
    available: int | None,
) -> list[str]:
    """Settings with which one sequence fits into the KV cache, where there is room for `num_blocks`, or a
    sequence of `longest` tokens."""
    found = []
    if longest:
        found.append(f"max_model_len={longest}")
    if config.num_kv_blocks is None:
        found += [
            f"kv_cache_dtype={dtype!r}"
            for dtype, size in needs.other_bytes_per_block.items()
            if size * blocks_per_context <= num_blocks * needs.bytes_per_block
        ]
    needed = blocks_per_context * needs.bytes_per_block
    if available is None or needs.fixed + needed <= available:
        if config.num_kv_blocks is not None:
            found.append(f"num_kv_blocks={blocks_per_context}")
        elif config.kv_cache_memory is not None:
            found.append(f"kv_cache_memory={needed}")
    return found


def _ways_on(fitting: Sequence[str]) -> str:
    if not fitting:
        return "only a smaller model would fit"
    return f"{' or '.join(fitting)} would fit"
