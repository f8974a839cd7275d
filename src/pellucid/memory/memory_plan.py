"""Where an engine's memory goes: planned in bytes before the KV cache is made."""

from dataclasses import dataclass

from pellucid.config import EngineConfig


@dataclass(frozen=True)
class MemoryPlan:
    """The budget of one engine. Sizes are in bytes.

    Args:
        weights: of the decoder, as loading counted them.
        scratch: what lies between the ops of the largest step, its logits, and blocks on their way to
            the prefix cache on disk.
        bytes_per_block: of all layers, K and V, scales and padding included.
        num_blocks: of the KV cache.
        block_size: tokens per block.
        max_model_len: tokens of the longest sequence.
        margin: left to the rest of the process and of the machine.
        available: what this process could still take when the weights were loaded; None: unknown.
        knob: what decided `num_blocks`, for people.
    """

    weights: int
    scratch: int
    bytes_per_block: int
    num_blocks: int
    block_size: int
    max_model_len: int
    margin: int
    available: int | None
    knob: str

    @property
    def kv_cache(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def num_tokens(self) -> int:
        """Positions that the KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def num_contexts(self) -> int:
        """Sequences of `max_model_len` tokens that fit together."""
        return self.num_blocks // blocks_for(self.max_model_len, self.block_size)


@dataclass(frozen=True)
class MemoryNeeds:
    """What the model and its backend ask for, in bytes. See `MemoryPlan`."""

    weights: int
    scratch: int
    bytes_per_block: int


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def plan_memory(
    config: EngineConfig, needs: MemoryNeeds, max_model_len: int, available: int | None
) -> MemoryPlan:
    """Gives the KV cache what the user says, or else what is left.

    What is left: `available` without scratch and margin, but no more than `max_num_seqs` sequences of
    `max_model_len` tokens can use. Such a cache costs nothing until it is used: its memory is the
    system's zeros, and blocks are touched one by one.

    Args:
        config: `num_kv_blocks` wins over `kv_cache_memory` (bytes), which wins over what is left;
            `memory_utilization` is the share of `available` of which something can be left.
        needs: bytes.
        max_model_len: tokens of the longest sequence.
        available: bytes that the process can still take, its weights being loaded.

    Raises:
        ValueError: not one sequence of `max_model_len` tokens would fit, or the cache asked for would
            not fit into the available memory.
    """
    margin = 0 if available is None else available - int(available * config.memory_utilization)
    blocks_per_context = blocks_for(max_model_len, config.block_size)
    if config.num_kv_blocks is not None:
        num_blocks, knob = config.num_kv_blocks, f"num_kv_blocks={config.num_kv_blocks}"
    elif config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // needs.bytes_per_block
        knob = f"kv_cache_memory={config.kv_cache_memory}"
    else:
        num_blocks, knob = config.max_num_seqs * blocks_per_context, "max_num_seqs, max_model_len"
        if available is not None:
            left = max(0, available - needs.scratch - margin) // needs.bytes_per_block
            if left < num_blocks:
                num_blocks, knob = left, f"what is left of {available} bytes available"
    if num_blocks < blocks_per_context:
        raise ValueError(
            f"{knob} gives {num_blocks} KV blocks of {needs.bytes_per_block} bytes, but one sequence of"
            f" max_model_len={max_model_len} tokens needs {blocks_per_context}: lower max_model_len"
            f" or set kv_cache_memory to at least {blocks_per_context * needs.bytes_per_block}"
        )
    kv_cache = num_blocks * needs.bytes_per_block
    if available is not None and needs.scratch + kv_cache > available:
        raise ValueError(
            f"{knob}: the KV cache would take {kv_cache / 2**30:,.2f} GiB, but only"
            f" {available / 2**30:,.2f} GiB of memory are available"
        )
    return MemoryPlan(
        needs.weights,
        needs.scratch,
        needs.bytes_per_block,
        num_blocks,
        config.block_size,
        max_model_len,
        margin,
        available,
        knob,
    )
