"""The number of requests that fit into the same memory: with the whole context reserved, or with paged
blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.benchmark.ablation.requests import MixedRequest
from pellucid.facts.formulas import BlockNeeds

NUM_CONTEXTS = 4  # the memory has room for this many whole contexts


@dataclass(frozen=True)
class Capacity:
    """One way to divide the same memory.

    Args:
        num_requests: that fit together, each at its end.
        used_share: of the memory that they take, what holds keys and values.
    """

    name: str
    num_requests: int
    used_share: float


@dataclass(frozen=True)
class CapacityResult:
    num_bytes: int
    capacities: tuple[Capacity, ...]


def measure_capacity(
    requests: Sequence[MixedRequest], max_model_len: int, needs: BlockNeeds, bytes_per_block: int
) -> CapacityResult:
    """Counts; requests come in their order, again and again, until the next one does not fit.

    Args:
        max_model_len: tokens of a whole context.
        bytes_per_block: of all layers of a group.
    """
    num_blocks = NUM_CONTEXTS * needs.most(max_model_len)
    longest = max(request.num_tokens for request in requests)
    capacities = (
        _fill("reserved: the whole context", requests, num_blocks, needs, max_model_len),
        _fill("reserved: the longest of these", requests, num_blocks, needs, longest),
        _fill("paged", requests, num_blocks, needs, None),
    )
    return CapacityResult(num_blocks * bytes_per_block, capacities)


def _fill(
    name: str,
    requests: Sequence[MixedRequest],
    num_blocks: int,
    needs: BlockNeeds,
    reserved: int | None,
) -> Capacity:
    """Args: reserved: tokens of each request; None: its own."""
    num_requests = taken = used = 0
    num_groups = len(needs.windows)
    while True:
        num_tokens = requests[num_requests % len(requests)].num_tokens
        needed = needs.most(num_tokens if reserved is None else reserved)
        if taken + needed > num_blocks:
            return Capacity(name, num_requests, used * num_groups / (taken * needs.block_size))
        num_requests, taken, used = num_requests + 1, taken + needed, used + num_tokens
