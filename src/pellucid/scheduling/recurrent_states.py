"""Recurrent states: each request's slot, its copy from before a step with drafts, and snapshots of prefixes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pellucid.scheduling.block_ops import BlockOp, Save, Slot, SlotKind
from pellucid.scheduling.block_tables import BlockTable
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.request import Request
from pellucid.scheduling.request_slots import RequestSlots, copy_slot
from pellucid.scheduling.state_pool import StatePool

# Least distance between two regular snapshots of a prompt's states.
SNAPSHOT_TOKENS = 2048
# Regular snapshots of one prompt take at most 1 / SNAPSHOTS_SHARE of the slots for snapshots.
SNAPSHOTS_SHARE = 4


class Checkpoint(NamedTuple):
    """A copy of a request's states, to which `rewind` can go back.

    Attributes:
        slot: the spare slot that holds the copy.
        num_tokens: computed tokens of the request when the copy was made.
    """

    slot: int
    num_tokens: int


@dataclass(eq=False, slots=True)
class RequestStates:
    """What is kept about the states of a request besides their slot.

    Attributes:
        checkpoint: copy of the states from before a step with drafts; None: there is none.
        snapshot_slot: slot of the snapshot that is copied to the request's on admission; None: no copy.
        diverges_at: position after the last sealed block that was found on admission; 0: none was found.
        latest_snapshot: tokens of the latest snapshot of the output; None: there is none.
    """

    checkpoint: Checkpoint | None = None
    snapshot_slot: int | None = None
    diverges_at: int = 0
    latest_snapshot: int | None = None


class RecurrentStates:
    """Owns which slot holds whose states, and lists the copies of states as block operations.

    A request has only the states after its last computed token; states of an earlier token are gone. So it has a
    slot as long as it has blocks. Snapshots of the states are taken at the ends of full blocks, under the hash of
    the block, for requests with the same beginning.

    Args:
        pool: owns the slots.
        offload: states in the swap file, and snapshots that were read from the prefix store; None: there is neither.
        block_ops: gets the operations.
        block_size: tokens per block.
        takes_snapshots: whether snapshots are taken, for other requests.
        snapshot_tokens: about how many tokens of a long prompt lie between two snapshots.
    """

    def __init__(
        self,
        pool: StatePool,
        offload: Offload | None,
        block_ops: list[BlockOp],
        block_size: int,
        takes_snapshots: bool,
        snapshot_tokens: int,
    ) -> None:
        self.pool = pool
        self._slots = RequestSlots(pool, block_ops)
        self._offload = offload
        self._block_ops = block_ops
        self._block_size = block_size
        self._takes_snapshots = takes_snapshots
        self._snapshot_blocks = max(1, snapshot_tokens // block_size)
        self._states: dict[str, RequestStates] = {}  # by request_id

    # ---- slots

    def slot(self, request: Request) -> int:
        """The slot of a request with blocks."""
        return self._slots.of(request)

    def lacks_slot(self, request: Request) -> bool:
        """Whether a request needs a slot, and none is free."""
        return self._slots.lacks(request)

    def ensure_slot(self, request: Request) -> None:
        """Gives a request a slot if it has none; one must be free."""
        self._slots.ensure(request)

    def release_slot(self, request: Request) -> None:
        """Takes back the slot of a request that has given back its blocks, if it has one."""
        self._slots.release(request)

    def forget(self, table: BlockTable) -> None:
        """Drops what is kept about a request that has ended and has no slot. The latest snapshot of its output is
        offered to the prefix store.

        Args:
            table: the request's block table in the first group.
        """
        states = self._states.pop(table.request.request_id, None)
        if states is not None and states.latest_snapshot is not None:
            self.pool.make_lasting(self._block_hash(table, states.latest_snapshot))
            self._save_snapshot(table, states.latest_snapshot)

    # ---- forks

    def fork(self, parent: Request, child: Request) -> bool:
        """Gives a child without states a copy of the parent's. Returns False if no slot is free."""
        return self._slots.copy(parent, child)

    def reassign(self, requests: Sequence[Request], parents: Sequence[int]) -> list[int]:
        """Gives each request i a copy of the states of requests[parents[i]], all at once.

        Returns:
            The indices of the requests for which no slot was free: they have no states.
        """
        for request, parent in zip(requests, parents, strict=True):
            if requests[parent] is not request:  # its own parent keeps its states
                self._states[request.request_id] = RequestStates()
        return self._slots.reassign(requests, parents, [True] * len(requests))

    # ---- going back

    def can_rewind(self, request: Request) -> bool:
        """`KVCacheManager.can_rewind`."""
        return self.pool.num_free_spares > 0 or not request.num_computed_tokens

    def checkpoint(self, request: Request) -> None:
        """`KVCacheManager.checkpoint`."""
        if not request.num_computed_tokens:
            return
        states = self._of(request)
        assert states.checkpoint is None
        states.checkpoint = Checkpoint(self.pool.allocate_spare(), request.num_computed_tokens)
        self._block_ops.append(copy_slot(self.slot(request), states.checkpoint.slot))

    def rewind(self, request: Request, num_tokens: int) -> int:
        """`KVCacheManager.rewind`: to the states that a request has, to the copy that `checkpoint` made, or to those of
        an empty text. Returns after how many tokens the states are."""
        states = self._of(request)
        checkpoint, states.checkpoint = states.checkpoint, None
        if num_tokens < request.num_computed_tokens:
            if checkpoint is not None and checkpoint.num_tokens <= num_tokens:
                num_tokens = checkpoint.num_tokens
                gone = self._slots.exchange(request, checkpoint.slot)
                checkpoint = Checkpoint(gone, num_tokens)
            else:
                num_tokens = 0
        if checkpoint is not None:
            self.pool.release_spare(checkpoint.slot)
        return num_tokens

    # ---- admission

    def diverges_at(self, request: Request) -> int:
        """The position after the last sealed block that was found for a request on admission."""
        return self._of(request).diverges_at

    def set_diverges_at(self, request: Request, num_tokens: int) -> None:
        """The sealed blocks that a request's text begins with end at position `num_tokens`."""
        self._of(request).diverges_at = num_tokens

    def use_snapshot(self, table: BlockTable, num_tokens: int) -> None:
        """Chooses the snapshot after a request's first `num_tokens` for `copy_snapshot`.

        Args:
            table: the request's block table in the first group.
        """
        block_hash = self._block_hash(table, num_tokens)
        slot = self.pool.use(block_hash, table.request.request_id, num_tokens)
        self._of(table.request).snapshot_slot = slot

    def restore(self, table: BlockTable, num_tokens: int) -> None:
        """Gives a request the states after `num_tokens`, from the swap file, a snapshot or the prefix store; a
        snapshot waits for `copy_snapshot`. What the prefix store has read becomes a snapshot for other requests.

        Args:
            table: the request's block table in the first group.
        """
        assert self._offload is not None  # where the blocks came from
        request_id = table.request.request_id
        states, slot = self._of(table.request), self.slot(table.request)
        states.snapshot_slot = None
        swapped = self._offload.swapped
        if swapped.num_state_tokens(request_id) == num_tokens:
            self._block_ops.append(swapped.swap_in_states(request_id, slot))
            return
        block_hash = self._block_hash(table, num_tokens)
        if block_hash in self.pool:
            states.snapshot_slot = self.pool.use(block_hash, request_id, num_tokens)
            return
        self._block_ops.append(
            self._offload.reads.load(request_id, Slot(SlotKind.STATES, slot), block_hash)
        )
        snapshot_slot = self.pool.add_snapshot(block_hash, request_id, num_tokens)
        if snapshot_slot is not None:
            self._block_ops.append(copy_slot(slot, snapshot_slot))

    def copy_snapshot(self, request: Request) -> None:
        """Copies the snapshot that was chosen for a request, if any, into its slot."""
        states = self._of(request)
        if states.snapshot_slot is not None:
            self._block_ops.append(copy_slot(states.snapshot_slot, self.slot(request)))
            states.snapshot_slot = None

    def swap_out(self, request: Request) -> None:
        """Writes the states of a request that gives back its blocks to the swap file, if it has room."""
        slot = self._slots.find(request)
        if self._offload and slot is not None and request.num_computed_tokens:
            op = self._offload.swapped.swap_out_states(
                request.request_id, request.num_computed_tokens, slot
            )
            if op is not None:
                self._block_ops.append(op)

    # ---- snapshots

    def num_tokens_to_snapshot(self, request: Request, start: int) -> int | None:
        """Tokens from position `start` to the next snapshot of a prompt; None: no further snapshot is wanted. A
        step must not compute more than these, so that the snapshot can follow it.

        Snapshots are taken after the prompt's last full block; at the end of the cached blocks that the prompt
        begins with, so that the next prompt with the same beginning continues there; and at regular intervals.
        """
        if not self._takes_snapshots or request.params.prompt_logprobs is not None:
            return None
        last = self._last_snapshot_at(request)
        if start >= last:
            return None
        interval = self._snapshot_interval(request)
        diverges_at = self._of(request).diverges_at
        wanted = min(last, (start // interval + 1) * interval)
        return (min(diverges_at, wanted) if start < diverges_at else wanted) - start

    def take_snapshot(self, table: BlockTable) -> None:
        """Takes a snapshot of a request's states at the end of a full block: in its prompt where
        `num_tokens_to_snapshot` wants one; in its output at each block, in place of the one before.

        Args:
            table: the request's block table in the first group.
        """
        request = table.request
        states, num_tokens = self._of(request), request.num_computed_tokens
        slot = self._slots.find(request)
        if slot is None or request.params.prompt_logprobs is not None:
            return
        in_output = num_tokens >= request.num_prompt_tokens
        is_wanted = num_tokens in (states.diverges_at, self._last_snapshot_at(request))
        if not (in_output or is_wanted or num_tokens % self._snapshot_interval(request) == 0):
            return
        if in_output and states.latest_snapshot is not None:
            self.pool.drop_of_output(self._block_hash(table, states.latest_snapshot))
        block_hash = self._block_hash(table, num_tokens)
        snapshot_slot = self.pool.add_snapshot(
            block_hash, request.request_id, num_tokens, in_output
        )
        if snapshot_slot is None:
            return
        self._block_ops.append(copy_slot(slot, snapshot_slot))
        if in_output:
            states.latest_snapshot = num_tokens
        else:
            self._save_snapshot(table, num_tokens)

    def _save_snapshot(self, table: BlockTable, num_tokens: int) -> None:
        """Offers a request's snapshot of the states after `num_tokens` to the prefix store."""
        key = table.key(num_tokens // self._block_size - 1)
        slot = self.pool.find(key.block_hash)
        if slot is not None and self._offload and self._offload.reads.has_prefix_store:
            self._block_ops.append(Save(Slot(SlotKind.STATES, slot), key.block_hash, key.token_ids))

    def _block_hash(self, table: BlockTable, num_tokens: int) -> bytes:
        """The key of a snapshot: the hash of the block that ends after a request's first `num_tokens`."""
        return table.key(num_tokens // self._block_size - 1).block_hash

    def _last_snapshot_at(self, request: Request) -> int:
        """The end of the prompt's last full block that does not hold its last token."""
        return (request.num_prompt_tokens - 1) // self._block_size * self._block_size

    def _snapshot_interval(self, request: Request) -> int:
        """Tokens of a prompt between two regular snapshots: more for a prompt that would need too many slots."""
        most = max(1, self.pool.num_snapshots // SNAPSHOTS_SHARE)
        num_blocks = -(-self._last_snapshot_at(request) // (most * self._block_size))
        return max(self._snapshot_blocks, num_blocks) * self._block_size

    # ----

    def _of(self, request: Request) -> RequestStates:
        states = self._states.get(request.request_id)
        if states is None:
            states = self._states[request.request_id] = RequestStates()
        return states

    def check_integrity(self, holders: Collection[str]) -> None:
        """Asserts that exactly the requests with blocks have a slot, each its own.

        Args:
            holders: the ids of the requests with blocks.
        """
        self.pool.check_integrity()
        kept = self._states.values()
        assert all(states.snapshot_slot is None for states in kept)
        num_copies = sum(states.checkpoint is not None for states in kept)
        assert num_copies + self.pool.num_free_spares == self.pool.num_spares
        self._slots.check_integrity()
        assert self._slots.holders == set(holders)
