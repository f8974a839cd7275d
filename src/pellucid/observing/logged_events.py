"""Events of decode steps that native code has encoded: decoded again only for readers that do not take JSON."""

from collections.abc import Iterable, Sequence, Sized
from typing import Any, Protocol, TypeAlias

import msgspec

from pellucid.observing.events import BlockOps, EventRecord, Step, Tokens, TokenText


class LoggedEvents(Protocol):
    """Events that follow each other.

    Attributes:
        seq, last_seq: the numbers of the first and the last one.
        t_us: of the last one.
        json: a JSON array of their records, without its brackets.
    """

    @property
    def seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def t_us(self) -> int: ...
    @property
    def num_events(self) -> int: ...
    @property
    def json(self) -> bytes: ...


class StepLog(Protocol):
    """The native log of plain steps (csrc/bindings/step_log.cpp): in such a step each request decodes one token, goes
    on, and has decoded one in the step before."""

    def begin(self, now: float, step: int, output: object, taken: object, observed: Sized) -> int:
        """A step has been sampled at `now`, in seconds: to be called of each. Returns what nobody else has to tell:
        `TELLS_TOKENS`, `TELLS_BLOCKS`.

        Args:
            output: its `SchedulerOutput`.
            taken: by request id, the tokens that it gives.
            observed: of their choice, which somebody else tells.
        """
        ...

    def tell_tokens(self, has_some: bool, has_all: bool) -> None:
        """Whether any tokens are to be told from now on, and whether those of all requests."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether the step that has begun is plain."""
        ...

    def follow_blocks(self, follows: bool) -> None:
        """Whether `kv` of plain steps is kept unasked: as long as the log knows how many slots hold no token."""
        ...

    def add_blocks(self, changes: tuple[Any, ...] | None) -> None:
        """Has `kv` of the step kept, which is plain, and counts its tokens.

        Args:
            changes: `BlockChanges` beside the slots that were filled; None: there are none.
        """
        ...

    def add_changes(self, now: float, step: int, changes: tuple[Any, ...]) -> None:
        """Keeps `kv` of changes between steps."""
        ...

    def split(self, with_blocks: bool) -> bool:
        """Keeps the events of the latest step but `step`, and those of blocks only `with_blocks`; returns whether there
        are any."""
        ...

    def finish(
        self, now: float, works: list[Any], times: object, last: float | None, expert_bytes: int
    ) -> bool:
        """Keeps the events of the step that has begun, if it is plain; returns whether it is."""
        ...

    def take_told(self) -> Tokens | None:
        """The latest tokens that were kept, unless they were asked for."""
        ...

    def take_counted(self) -> Tokens | None:
        """The latest tokens that were counted, unless they were asked for."""
        ...

    def take_counts(self) -> tuple[int, list[int]]:
        """The tokens that were counted since the last call, and the microseconds since the token before
        each."""
        ...

    def take(self, count: int, seq: int, t_us: int, start: float) -> LoggedEvents:
        """The events of what the oldest `count` calls have kept.

        Args:
            seq: the number of the first event.
            t_us: the least time that they are stamped with.
            start: the second that is 0 us.
        """
        ...


# One event, or several that follow each other.
Records: TypeAlias = EventRecord | LoggedEvents


class _LoggedRecord(EventRecord, frozen=True, gc=False):
    event: TokenText | BlockOps | Step


_decoder = msgspec.json.Decoder(list[_LoggedRecord])


def records_of(batch: Iterable[Records]) -> list[EventRecord]:
    """Each event as a record of its own."""
    records: list[EventRecord] = []
    for each in batch:
        if isinstance(each, EventRecord):
            records.append(each)
        else:
            logged = _decoder.decode(b"[%b]" % each.json)
            records += [EventRecord(own.seq, own.t_us, own.step, own.event) for own in logged]
    return records


def encode_batch(batch: Sequence[Records]) -> bytes:
    """Events as a JSON array of {"seq": ..., "t_us": ..., "step": ..., "event": {"ev": ..., ...}}: in few calls, which
    a reader of thousands a second needs."""
    parts: list[bytes] = []
    records: list[EventRecord] = []
    for each in batch:
        if isinstance(each, EventRecord):
            records.append(each)
            continue
        if records:
            parts.append(msgspec.json.encode(records)[1:-1])
            records = []
        parts.append(each.json)
    if records:
        parts.append(msgspec.json.encode(records)[1:-1])
    return b"[%b]" % b",".join(parts)
