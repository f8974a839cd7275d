"""Compares a call's prompt with an earlier call's, to explain why the prefix cache did not have all of it."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import msgspec

from pellucid.server.generation import Generation
from pellucid.server.request_records import RequestRecords


class CacheOutcome(Enum):
    """What the prefix cache had of the earlier prompt."""

    REUSED = "reused"  # all of it that fills blocks
    DIFFERS = "differs"  # the prompts part before its end
    EVICTED = "evicted"  # the prompts agree, but its blocks were evicted
    NOT_FOUND = "not found"  # no such call is remembered, or it is another caller's


@dataclass(frozen=True)
class CacheComparison:
    """A prompt beside an earlier one.

    Attributes:
        changed: the first aspect of the call that differs, if one does; otherwise it is the conversation.
        missed_tokens: tokens of the earlier prompt from the first different one on; None: it is not found.
        reusable_tokens: of the earlier prompt; likewise.
    """

    outcome: CacheOutcome
    changed: str | None = None
    missed_tokens: int | None = None
    reusable_tokens: int | None = None


def compare_with(
    earlier_id: str, generation: Generation, records: RequestRecords
) -> CacheComparison:
    """Compares the prompt of a call that has begun.

    Args:
        earlier_id: the id of an earlier reply, as the client has it.
        generation: of the call.
        records: where the earlier call is looked for.
    """
    earlier = records.find(earlier_id, generation.call.caller)
    if earlier is None:
        return CacheComparison(CacheOutcome.NOT_FOUND)
    theirs, (own,) = earlier.prompts[0].token_ids, generation.prompts
    num_equal = common_length(theirs, array("I", own.token_ids))
    if num_equal < len(theirs):
        aspects = generation.request.aspects
        changed = (name for name, value in aspects.items() if earlier.aspects.get(name) != value)
        return CacheComparison(
            CacheOutcome.DIFFERS, next(changed, None), len(theirs) - num_equal, len(theirs)
        )
    block_size = generation.block_size
    # The last token of a prompt is always computed: its logits are needed.
    findable = min(num_equal, len(own.token_ids) - 1) // block_size * block_size
    found = generation.outputs[0].num_cached_tokens
    outcome = CacheOutcome.REUSED if found >= findable else CacheOutcome.EVICTED
    return CacheComparison(outcome, None, findable - found, len(theirs))


def common_length(first: "array[int]", second: "array[int]") -> int:
    """Leading tokens that two prompts share, found by halving."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def aspects_of(**parts: Any) -> Mapping[str, bytes]:
    """Digests of what of a call stands in its prompt, to be compared with those of a later one."""
    return {
        name: blake2b(msgspec.json.encode(part), digest_size=16).digest()
        for name, part in parts.items()
    }
