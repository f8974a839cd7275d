"""Collects the events of one request for `pellucid explain`."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]  # in its wire form


@dataclass(frozen=True)
class Phase:
    """The steps that computed a request's prompt (or computed it again), or its newest tokens.

    Attributes:
        name: "prefill" or "decode".
        steps: the events.
        num_tokens: of the request in these steps.
    """

    name: str
    steps: tuple[Event, ...]
    num_tokens: int

    @property
    def forward_us(self) -> float:
        """Of a step, the median."""
        return float(statistics.median(step["fwd_us"] for step in self.steps))

    @property
    def num_requests(self) -> float:
        """Of a step, the mean."""
        return statistics.fmean(len(step["batch"]) for step in self.steps)

    @property
    def num_bytes(self) -> float:
        """Weights, keys and values that a step moves, the mean."""
        kinds = ("w_bytes", "kv_read_bytes", "kv_write_bytes")
        return statistics.fmean(sum(step[kind] for kind in kinds) for step in self.steps)

    @property
    def flops(self) -> float:
        """Of a step, the mean."""
        return statistics.fmean(step["flops"] for step in self.steps)

    @property
    def bound(self) -> str | None:
        """What limits most of the steps; None if the machine was not measured."""
        bounds = [step["bound"] for step in self.steps if "bound" in step]
        return statistics.mode(bounds) if bounds else None

    @property
    def limit_share(self) -> float | None:
        """How near the forwards came to the machine's limit, all together."""
        predicted = sum(step.get("pred_us", 0) for step in self.steps)
        measured = sum(step["fwd_us"] for step in self.steps)
        return predicted / measured if predicted and measured else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "steps": len(self.steps),
            "tok": self.num_tokens,
            "fwd_us": self.forward_us,
            "requests": self.num_requests,
            "bytes": self.num_bytes,
            "flops": self.flops,
            "bound": self.bound,
            "limit_frac": self.limit_share,
        }


@dataclass
class Explanation:
    """The events of one request.

    Attributes:
        request_id: of a generation.
        hello: the engine.
        added: its beginning.
        ledger: its end; None if it was not recorded.
        prefix: what it found at its first admission.
        steps: that it took part in.
    """

    request_id: str
    hello: Event
    added: Event
    ledger: Event | None = None
    prefix: Event | None = None
    states: list[Event] = field(default_factory=list)
    preemptions: list[Event] = field(default_factory=list)
    steps: list[Event] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        """As far as the steps show: each decode step is fed one, and the last one is not fed."""
        decode = self.phase("decode")
        prefilled = any(self._context(step) >= self.added["prompt_tok"] for step in self.steps)
        return int(prefilled) + (decode.num_tokens if decode else 0)

    @property
    def num_blocks(self) -> int:
        """Of the KV cache that it had in the end."""
        longest = max((self._context(step) for step in self.steps), default=0)
        return int(-(-longest // (self.hello["kv"]["block_tok"] or 1)))

    @property
    def phases(self) -> list[Phase]:
        return [phase for name in ("prefill", "decode") if (phase := self.phase(name))]

    def phase(self, name: str) -> Phase | None:
        """None if no step was of that kind."""
        prompt_tok = self.added["prompt_tok"]
        steps, num_tokens = [], 0
        for step in self.steps:
            _, num, context = next(row for row in step["batch"] if row[0] == self.request_id)
            is_decoding = context - num >= prompt_tok and step["kind"] != "prefill"
            if is_decoding == (name == "decode"):
                steps.append(step)
                num_tokens += num
        return Phase(name, tuple(steps), num_tokens) if steps else None

    def as_dict(self) -> dict[str, Any]:
        """For --json: events in their wire form, and the steps in summary."""
        return {
            "req": self.request_id,
            "hello": self.hello,
            "added": self.added,
            "ledger": self.ledger,
            "prefix": self.prefix,
            "states": self.states,
            "preemptions": self.preemptions,
            "phases": {phase.name: phase.as_dict() for phase in self.phases},
            "kv_blocks": self.num_blocks,
        }

    def _context(self, step: Event) -> int:
        return int(next(row[2] for row in step["batch"] if row[0] == self.request_id))


def explain_request(events: Iterable[Event], request_id: str | None = None) -> Explanation:
    """Collects the events of one request from a recording.

    Args:
        events: in their wire form and order.
        request_id: of a generation ("r/0") or of a request ("r"), whose first answer is taken; None
            if there is one request only.

    Raises:
        ValueError: the request is not there, or there are several to choose from.
    """
    hello: Event | None = None
    found: dict[str, Explanation] = {}
    for event in events:
        if event["ev"] == "hello":
            hello = event
        elif event["ev"] == "req.add" and hello is not None:
            found[event["req"]] = Explanation(event["req"], hello, event)
        for explanation in _concerned(found, event):
            _take(explanation, event)
    return _choose(found, request_id)


def _concerned(found: dict[str, Explanation], event: Event) -> Iterator[Explanation]:
    ids = [row[0] for row in event["batch"]] if event["ev"] == "step" else [event.get("req")]
    return (found[request_id] for request_id in ids if request_id in found)


def _take(explanation: Explanation, event: Event) -> None:
    match event["ev"]:
        case "req.ledger":
            explanation.ledger = event
        case "req.prefix" if explanation.prefix is None:
            explanation.prefix = event
        case "req.state":
            explanation.states.append(event)
        case "preempt":
            explanation.preemptions.append(event)
        case "step":
            explanation.steps.append(event)


def _choose(found: dict[str, Explanation], request_id: str | None) -> Explanation:
    if not found:
        raise ValueError("no request was recorded from its beginning")
    if request_id is None:
        if len(found) > 1:
            raise ValueError(f"--request: choose one of {', '.join(found)}")
        return next(iter(found.values()))
    for name in (request_id, f"{request_id}/0"):
        if name in found:
            return found[name]
    raise ValueError(
        f"--request {request_id}: is not in the recording; its requests are {', '.join(found)}"
    )
