"""The swap file's slots: which blocks and recurrent states of preempted requests are in them."""

from collections.abc import Collection
from typing import NamedTuple

from pellucid.scheduling.block_ops import SwapIn, SwapOut, SwapOutState
from pellucid.scheduling.block_table import Place


class SwappedStates(NamedTuple):
    """Recurrent states in the swap file.

    Attributes:
        num_tokens: computed tokens of the request when they were swapped out.
        swap_slots: the slots that hold them.
    """

    num_tokens: int
    swap_slots: tuple[int, ...]


class SwappedBlocks:
    """Owns the slots of the swap file. A preempted request finds there the blocks and the states that it lost.

    Recurrent states take as many slots as the number of blocks that their bytes fill.

    Args:
        num_slots: blocks that the swap file holds; 0: there is no swap file.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a request, rounded up.
    """

    def __init__(self, num_slots: int, blocks_per_state: int) -> None:
        self._num_slots = num_slots
        self._blocks_per_state = blocks_per_state
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._slots: dict[str, dict[Place, int]] = {}  # of blocks, by request id and place
        self._states: dict[str, SwappedStates] = {}  # by request id

    def num_blocks(self, request_id: str) -> int:
        """Blocks of a request in the swap file."""
        return len(self._slots.get(request_id, ()))

    def has_block(self, request_id: str, place: Place) -> bool:
        return place in self._slots.get(request_id, ())

    def swap_out(self, request_id: str, place: Place, block_id: int) -> SwapOut | None:
        """Swaps out a request's block at `place`, if a slot is free."""
        if not self._free_slots:
            return None
        slot = self._free_slots.pop()
        self._slots.setdefault(request_id, {})[place] = slot
        return SwapOut(block_id, slot)

    def swap_in(self, request_id: str, place: Place, block_id: int) -> SwapIn | None:
        """Swaps a request's block at `place` into another block, if the swap file has it."""
        if (slot := self._slots.get(request_id, {}).pop(place, None)) is None:
            return None
        self._free_slots.append(slot)
        return SwapIn(slot, block_id)

    def swap_out_states(
        self, request_id: str, state_slot: int, num_tokens: int
    ) -> SwapOutState | None:
        """Swaps out a request's recurrent states after `num_tokens`, if slots are free for them and for a block."""
        assert request_id not in self._states
        if len(self._free_slots) <= self._blocks_per_state:
            return None
        swap_slots = tuple([self._free_slots.pop() for _ in range(self._blocks_per_state)])
        self._states[request_id] = SwappedStates(num_tokens, swap_slots)
        return SwapOutState(state_slot, swap_slots)

    def states(self, request_id: str) -> SwappedStates | None:
        """A request's recurrent states in the swap file; None: there are none."""
        return self._states.get(request_id)

    def drop(self, request_id: str) -> None:
        """Frees the slots of a request."""
        self._free_slots += self._slots.pop(request_id, {}).values()
        if (states := self._states.pop(request_id, None)) is not None:
            self._free_slots += states.swap_slots

    def check_integrity(self, request_ids: Collection[str]) -> None:
        """`request_ids`: of all unfinished requests with a block table."""
        taken = [slot for slots in self._slots.values() for slot in slots.values()]
        taken += [slot for states in self._states.values() for slot in states.swap_slots]
        assert sorted([*self._free_slots, *taken]) == list(range(self._num_slots))
        assert self._slots.keys() | self._states.keys() <= set(request_ids)
