"""The ledger: splits each request's wall time into parts that add up.

Time is booked once and without gaps: each entry stores the time up to which it has been booked, and each
booking assigns the time from there to a later time to one part. The parts of a ledger are

* tokenize: from the call to the queue: reading, templating and tokenizing the prompt.
* queue: waiting to be admitted for the first time.
* prefill: forwards of steps that computed its prompt.
* decode: forwards of steps that computed its newest token, less stall.
* stall: delays by prompts of other requests. In a forward that has prompt tokens of other requests
  besides its newest token: their share of the step's FLOPs. In a step that left it out because the budget
  was used up: the whole step.
* preempted: waiting after a preemption, and the share, by FLOPs, of forwards in which it computed again
  what it had lost.
* sampling: choosing tokens in steps that it took part in, for all of the step's requests.
* emit: booking these tokens and turning them into text, likewise.
* drafting: making drafts for steps that it took part in, for all of the step's requests.
* other: scheduling, and between the steps.

Prompt tokens are the tokens of a request without output, and tokens that are computed again. A request
waits for whole steps, so each request of a step books all of the step's time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import nlargest

from msgspec import Struct

# Most requests in `stalled_by` and `blocked_by`, and most ended requests that are remembered.
MAX_NAMED = 3
MAX_REMEMBERED = 32

Flops = Callable[[int, int, int], int]  # of (start, end, rows with logits), one request's


class Part(IntEnum):
    """The part to which time is booked; an index into a list of sums."""

    TOKENIZE = 0
    QUEUE = 1
    PREFILL = 2
    DECODE = 3
    STALL = 4
    PREEMPTED = 5
    SAMPLING = 6
    EMIT = 7
    OTHER = 8
    DRAFTING = 9


_FIELDS = tuple(f"{part.name.lower()}_seconds" for part in Part)  # of `Ledger`


class Ledger(Struct, frozen=True):
    """A request's wall time in seconds: the parts of the module's docstring, which add up to it.

    Attributes:
        total_seconds: from the call to the end of the step that ended it.
        num_recomputed_tokens: positions computed again after preemptions.
        stalled_by: (request id, seconds), the longest first: whose prompts made it later.
        blocked_by: (request id, seconds), the longest first: who was running while it was in the
            queue and could not be admitted.
    """

    tokenize_seconds: float
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    stall_seconds: float
    preempted_seconds: float
    sampling_seconds: float
    emit_seconds: float
    other_seconds: float
    total_seconds: float
    num_recomputed_tokens: int
    stalled_by: tuple[tuple[str, float], ...]
    blocked_by: tuple[tuple[str, float], ...]
    drafting_seconds: float = 0.0

    def seconds(self, part: Part) -> float:
        return float(getattr(self, _FIELDS[part]))


@dataclass(slots=True)
class StepTimes:
    """When a step began and when its parts ended, in seconds; each part begins when the previous one
    ended.

    Attributes:
        drafting: seconds, within those of scheduling, that making drafts took.
    """

    started: float
    scheduled: float = 0.0
    executed: float = 0.0  # the forward
    sampled: float = 0.0
    emitted: float = 0.0
    drafting: float = 0.0


@dataclass(slots=True)  # not frozen: that would double what it costs to make one
class Work:
    """A request's share of a step: positions start .. end - 1.

    Attributes:
        num_recomputed: how many of these, from the first, had been computed before a preemption.
        num_logits: rows that went through the head.
        has_output: whether it has output; then only its newest token is computed for the first time.
    """

    request_id: str
    start: int
    end: int
    num_recomputed: int
    num_logits: int
    has_output: bool
    flops: int

    @property
    def is_decoding(self) -> bool:
        """As `Request.is_decoding` when the step was scheduled."""
        return self.has_output and not self.num_recomputed


@dataclass(slots=True)
class _Entry:
    """The time of one request that has been booked so far."""

    arrived: float
    booked: float  # up to when
    seconds: list[float]  # by part
    idle: Part = Part.QUEUE  # what time is in which no step has a part of the request
    admitted: float = 0.0
    num_recomputed: int = 0
    stalled_by: dict[str, float] | None = None
    blocked_by: tuple[tuple[str, float], ...] = ()

    def book(self, part: Part, until: float) -> None:
        self.seconds[part] += until - self.booked
        self.booked = until

    def book_decode(self, times: StepTimes) -> None:
        """A step with nothing but newest tokens."""
        self.book_scheduling(times)
        self.seconds[Part.DECODE] += times.executed - times.scheduled
        self.seconds[Part.SAMPLING] += times.sampled - times.executed
        self.seconds[Part.EMIT] += times.emitted - times.sampled
        self.booked = times.emitted

    def book_scheduling(self, times: StepTimes) -> None:
        """Books the time before `times.scheduled`."""
        if times.drafting:
            self.book(Part.OTHER, times.scheduled - times.drafting)
            self.book(Part.DRAFTING, times.scheduled)
        else:
            self.book(Part.OTHER, times.scheduled)

    def blame(self, seconds: float, catching_up: Mapping[str, int]) -> None:
        """Names who is behind `seconds` of stall, each by its FLOPs."""
        self.stalled_by = self.stalled_by or {}
        total = sum(catching_up.values())
        for other, flops in catching_up.items():
            self.stalled_by[other] = self.stalled_by.get(other, 0.0) + seconds * flops / total


class LedgerBook:
    """Owns the ledgers of unfinished requests. Booking a step takes time for the requests in it, not for
    those that wait."""

    def __init__(self, flops: Flops) -> None:
        self._flops = flops
        self._entries: dict[str, _Entry] = {}
        self._running: dict[str, float] = {}  # id: when it was admitted
        self._left: deque[tuple[str, float, float]] = deque(maxlen=MAX_REMEMBERED)
        self._last_start = float("-inf")  # of the step before

    def open(self, request_id: str, arrived: float, queued: float) -> None:
        """Opens the ledger of a request that has arrived.

        Args:
            arrived: when its caller asked.
            queued: when its prompt was tokenized.
        """
        entry = self._entries[request_id] = _Entry(arrived, arrived, [0.0] * len(Part))
        entry.book(Part.TOKENIZE, queued)

    def step(
        self,
        times: StepTimes,
        works: Sequence[Work],
        preempted: Iterable[str] = (),
        left_out: Iterable[str] = (),
    ) -> None:
        """Books a step that has ended.

        Args:
            preempted: requests that were preempted when the step was scheduled.
            left_out: running requests for which the budget was used up.
        """
        for request_id in preempted:
            self._preempt(request_id, times.scheduled)
        for work in works:
            if work.request_id not in self._running:
                self._admit(work.request_id, times.started)
        catching_up = {
            work.request_id: self._recomputed_flops(work) if work.has_output else work.flops
            for work in works
            if not work.is_decoding
        }
        if catching_up:
            self._book_mixed(times, works, catching_up)
        else:  # most steps: the same for all of their requests
            for work in works:
                self._entries[work.request_id].book_decode(times)
        for request_id in left_out:
            entry = self._entries[request_id]
            entry.book(Part.OTHER, times.started)
            entry.blame(times.emitted - times.started, catching_up)
            entry.book(Part.STALL, times.emitted)
        self._last_start = times.started

    def fork(self, parent_id: str, request_id: str) -> None:
        """Copies the time booked so far from a sibling, `parent_id`, which has computed the prompt of both."""
        parent = self._entries[parent_id]
        stalled_by = dict(parent.stalled_by) if parent.stalled_by else None
        self._entries[request_id] = replace(
            parent, seconds=list(parent.seconds), stalled_by=stalled_by
        )
        self._running[request_id] = parent.admitted

    def close(self, request_id: str, now: float) -> Ledger:
        """Closes the ledger of a request that has ended."""
        entry = self._entries.pop(request_id)
        entry.book(entry.idle, now)
        self._leave(request_id, now)
        return Ledger(
            **dict(zip(_FIELDS, entry.seconds, strict=True)),
            total_seconds=now - entry.arrived,
            num_recomputed_tokens=entry.num_recomputed,
            stalled_by=_longest(entry.stalled_by.items()) if entry.stalled_by else (),
            blocked_by=entry.blocked_by,
        )

    def _admit(self, request_id: str, now: float) -> None:
        entry = self._entries[request_id]
        # If the step before could have admitted it, other requests were in its way.
        if entry.idle is Part.QUEUE and entry.booked <= self._last_start:
            entry.blocked_by = self._running_between(entry.booked, now)
        entry.book(entry.idle, now)
        entry.idle = Part.OTHER
        entry.admitted = self._running[request_id] = now

    def _preempt(self, request_id: str, now: float) -> None:
        entry = self._entries[request_id]
        entry.book(entry.idle, now)
        entry.idle = Part.PREEMPTED
        self._leave(request_id, now)

    def _leave(self, request_id: str, now: float) -> None:
        admitted = self._running.pop(request_id, None)
        if admitted is not None:
            self._left.append((request_id, admitted, now))

    def _running_between(self, start: float, end: float) -> tuple[tuple[str, float], ...]:
        overlaps: dict[str, float] = {}
        still_running = ((other, admitted, end) for other, admitted in self._running.items())
        for other, admitted, left in (*self._left, *still_running):
            overlap = min(left, end) - max(admitted, start)
            if overlap > 0:
                overlaps[other] = overlaps.get(other, 0.0) + overlap
        return _longest(overlaps.items())

    def _recomputed_flops(self, work: Work) -> int:
        return self._flops(work.start, work.start + work.num_recomputed, 0)

    def _book_mixed(
        self, times: StepTimes, works: Sequence[Work], catching_up: Mapping[str, int]
    ) -> None:
        total_flops = sum(work.flops for work in works)
        forward = times.executed - times.scheduled
        for work in works:
            entry = self._entries[work.request_id]
            entry.book_scheduling(times)
            if work.num_recomputed:
                share = self._recomputed_flops(work) / work.flops
                entry.book(Part.PREEMPTED, times.scheduled + forward * share)
                entry.num_recomputed += work.num_recomputed
            elif work.has_output:
                stall = forward * sum(catching_up.values()) / total_flops
                entry.book(Part.STALL, times.scheduled + stall)
                entry.blame(stall, catching_up)
            entry.book(Part.DECODE if work.has_output else Part.PREFILL, times.executed)
            entry.book(Part.SAMPLING, times.sampled)
            entry.book(Part.EMIT, times.emitted)


def _longest(seconds: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple(nlargest(MAX_NAMED, seconds, key=lambda item: item[1]))
