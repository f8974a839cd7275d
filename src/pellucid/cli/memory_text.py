"""The memory plan in a line."""

from typing import TYPE_CHECKING

from pellucid.cli.units import num_bytes

if TYPE_CHECKING:
    from pellucid.memory.memory_plan import MemoryPlan


def memory_line(plan: "MemoryPlan") -> str:
    """What an engine's memory is for, and how much text the KV cache holds."""
    room = f"{plan.num_blocks} blocks of {plan.block_size} tokens"
    if plan.num_contexts:
        room += f", {plan.num_contexts} x {plan.max_model_len} tokens"
    parts = [
        f"weights {num_bytes(plan.weights)}",
        f"scratch {num_bytes(plan.scratch)}",
        f"KV cache up to {num_bytes(plan.kv_cache)} ({room})",
    ]
    if plan.available is not None:
        parts.append(f"available {num_bytes(plan.available)}")
    return "memory: " + " · ".join(parts)
