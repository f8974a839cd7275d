"""The state of an engine at a moment of its events: requests and blocks, as a snapshot would have them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestState:
    """An unfinished completion.

    Attributes:
        state, reason: as in `req.state`.
    """

    state: str
    reason: str | None = None
    prompt_tok: int | None = None
    num_tokens_seen: int = 0  # events `tok` since the events began
    blocked_by: list[str] = field(default_factory=list)


@dataclass
class BlockState:
    """A block with an owner or with contents that can be found.

    Attributes:
        owners: how many.
        hash: the first 16 hex digits; None: it is not sealed.
        filled: tokens in it, as far as events have said.
        owner: the request that it was last allocated for or shared with.
    """

    owners: int = 0
    hash: str | None = None
    filled: int = 0
    owner: str | None = None


class TraceState:
    """Applies events one after the other. It begins with an engine that has just started, or with a snapshot.

    Attributes:
        seq, t_us, step: of the last event.
        requests: unfinished ones, by name.
        blocks: by id.
        is_complete: whether no events were missed since the beginning or the last snapshot.
    """

    def __init__(self) -> None:
        self.seq = self.t_us = -1
        self.step = 0
        self.requests: dict[str, RequestState] = {}
        self.blocks: dict[int, BlockState] = {}
        self.is_complete = True
        self._as_of = -1  # the last event that the snapshot includes

    def apply(self, event: dict[str, Any]) -> None:
        """Takes in one event. Those that a snapshot includes already change nothing."""
        if event["ev"] == "snapshot":
            self._restart(event)
            return
        seq = event["seq"]
        if seq <= self._as_of:
            return
        self.seq, self.t_us, self.step = seq, event["t_us"], event["step"]
        match event["ev"]:
            case "gap":
                self.is_complete = False
            case "req.add":
                self.requests[event["req"]] = RequestState("waiting", None, event["prompt_tok"])
            case "req.state":
                self._change(event)
            case "tok" | "tok.text" if (request := self.requests.get(event["req"])) is not None:
                request.num_tokens_seen += 1
            case "kv":
                for row in event["ops"]:
                    self._move(*row)

    def _restart(self, snapshot: dict[str, Any]) -> None:
        self._as_of = self.seq = snapshot["as_of_seq"]
        self.is_complete = True
        self.requests = {
            request["req"]: RequestState(
                request["state"], request.get("reason"), request["prompt_tok"]
            )
            for request in snapshot["requests"]
        }
        self.blocks = {
            block: BlockState(owners, block_hash)
            for block, owners, block_hash in snapshot["blocks"]
        }
        for request in snapshot["requests"]:
            for block in request["blocks"]:
                self.blocks[block].owner = request["req"]

    def _change(self, event: dict[str, Any]) -> None:
        if event["to"] in ("done", "cancelled", "failed"):
            self.requests.pop(event["req"], None)
            return
        request = self.requests.setdefault(event["req"], RequestState("waiting"))
        request.state, request.reason = event["to"], event["reason"]
        request.blocked_by = event.get("blocked_by", [])

    def _move(self, op: str, block_id: int, a: Any, b: Any) -> None:
        block = self.blocks.setdefault(block_id, BlockState())
        match op:
            case "A":
                self.blocks[block_id] = BlockState(1, None, 0, a)
            case "C":
                source = self.blocks.get(a, BlockState())
                self.blocks[block_id] = BlockState(1, None, source.filled, b)
            case "S":
                block.owners, block.owner = b, a
            case "R":
                block.owners = a
            case "F":
                block.filled = a
            case "H":
                block.hash = a
            case "E":
                block.hash = None
        block = self.blocks[block_id]
        if not block.owners and block.hash is None:
            del self.blocks[block_id]
