"""The event feed: lets readers take events at their own pace from a bounded ring, and reports events that
they missed."""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from threading import Lock
from typing import final

from pellucid.observing.event_bus import EventBus, Interest, union
from pellucid.observing.events import EventRecord, Gap, Level
from pellucid.observing.logged_events import Records, encode_batch, records_of

DEFAULT_CAPACITY = 20_000  # events: about 10,000 steps at level STEP
MAX_TAKEN = 1_000  # events that a reader takes at once, while the engine may wait for the ring
POLL_SECONDS = 1 / 20  # the live page shows what is new ten times a second


@final
class EventFeed:
    """Keeps the last events of a bus for any number of readers.

    The engine's thread only puts records into the ring, or leaves those of steps to the next reader, who makes
    them of many steps together; readers take them from there: a slow reader costs the engine nothing. A reader
    that falls behind by more than the ring gets a `gap` in place of the events that it missed; it should then
    take a snapshot of the engine.

    Args:
        bus: the engine's. The feed listens at the highest level of its readers, and not at all without any.
    """

    def __init__(self, bus: EventBus, capacity: int = DEFAULT_CAPACITY) -> None:
        assert capacity >= 1
        self._bus = bus
        self._capacity = capacity
        self._lock = Lock()  # for what is kept
        self._kept: deque[Records] = deque()
        self._num_kept = 0  # events
        self._end = 0  # how many `Records` were ever kept
        self._readers_lock = Lock()  # for what follows; never taken on the engine's thread
        self._readers: set[FeedReader] = set()
        self._unsubscribe: Callable[[], None] | None = None

    def read(
        self,
        level: Level = Level.STAT,
        after_seq: int | None = None,
        tokens_of: Collection[str] | None = None,
    ) -> "FeedReader":
        """A new reader.

        Args:
            level: the highest level of the events that it gets.
            tokens_of: as in `EventBus.subscribe`.
            after_seq: the last event that it has got already; it continues after that if the ring still has
                the next one. None: it gets events from now on.
        """
        interest = Interest(
            level, None if tokens_of is None else frozenset(tokens_of), can_wait=True
        )
        self._bus.flush()  # events before now
        with self._readers_lock:
            if after_seq is None:
                reader = FeedReader(self, interest, self._end)
            else:
                position, is_missing = self._position(after_seq)
                reader = FeedReader(self, interest, position, after_seq, is_missing)
            self._readers.add(reader)
            is_first = self._unsubscribe is None
            self._listen()
        if after_seq is None and not is_first:
            self._bus.repeat_hello()
        return reader

    def close(self, reader: "FeedReader") -> None:
        """Ends a reader; may be called more than once."""
        with self._readers_lock:
            self._readers.discard(reader)
            self._listen()

    def take(self, position: int) -> tuple[list[Records], int]:
        """What came from a position on, at most `MAX_TAKEN`, and the position of the first of it."""
        self._bus.flush()
        with self._lock:
            first = max(position, self._end - len(self._kept))
            behind = max(0, self._end - first - MAX_TAKEN)
            taken = list(islice(reversed(self._kept), behind, self._end - first))
        return taken[::-1], first

    def encode(self, batch: Sequence[Records]) -> bytes:
        """As `encode_batch`; its time counts as spent on events."""
        with self._bus.spending():
            return encode_batch(batch)

    def _put(self, batch: Sequence[Records]) -> None:
        """On the thread that emits, usually the engine's, or on that of a reader."""
        kept = self._kept
        with self._lock:
            for each in batch:
                kept.append(each)
                self._num_kept += each.num_events
            self._end += len(batch)
            while self._num_kept > self._capacity and len(kept) > 1:
                self._num_kept -= kept.popleft().num_events

    def _position(self, after_seq: int) -> tuple[int, bool]:
        """The position of the first event after `after_seq` that is kept, or of those that have it among them, and
        whether there may have been others before it. Numbers only grow."""
        with self._lock:
            kept = self._kept
            index = bisect_right(kept, after_seq, key=attrgetter("last_seq"))
            position = self._end - len(kept) + index
            if index < len(kept):
                return position, index == 0 and kept[0].seq > after_seq + 1
            known = max(after_seq, kept[-1].last_seq if kept else -1)
        return position, self._unsubscribe is None and self._bus.last_seq > known

    def _listen(self) -> None:
        """Subscribes to the events that readers want."""
        if not self._readers:
            if self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
            return
        wanted = union([reader.interest for reader in self._readers])
        if self._unsubscribe is None:
            self._unsubscribe = self._bus.subscribe_lists(self._put, wanted)
        else:
            self._bus.change_interest(self._put, wanted)


@final
@dataclass(eq=False)
class FeedReader:
    """One reader of a feed, at its own pace. `EventFeed.read` makes it.

    Attributes:
        interest: the events that it gets.
        last_seq: of the last event that it was given or that it missed; None: none yet.
    """

    _feed: EventFeed
    interest: Interest
    _position: int
    last_seq: int | None = None
    _is_missing: bool = False  # events between the last one and `_position`

    def take(self) -> list[Records]:
        """The wanted events since the last call; never waits.

        If events were dropped since then, the first record is a `gap`.
        """
        batch, first = self._feed.take(self._position)
        if not batch:
            return []
        missed = self._is_missing or first > self._position
        self._position, self._is_missing = first + len(batch), False
        known, oldest = self.last_seq, batch[0]
        if known is not None and oldest.seq <= known < oldest.last_seq:  # it has the first of these
            batch[:1] = [each for each in records_of(batch[:1]) if each.seq > known]
        given = self.interest.among(batch)
        if missed:
            first_kept = records_of(batch[:1])[0]
            to_seq = first_kept.seq - 1
            gap = Gap(from_seq=0 if known is None else known + 1, to_seq=to_seq, resync=True)
            given.insert(0, EventRecord(to_seq, first_kept.t_us, first_kept.step, gap))
        self.last_seq = batch[-1].last_seq
        return given

    async def batches(self, poll_seconds: float = POLL_SECONDS) -> AsyncIterator[list[Records]]:
        """Events in batches, until the reader is closed or the iteration is left: all that came within
        `poll_seconds` together, however short steps are."""
        try:
            while True:
                if records := self.take():
                    yield records
                if len(records) < MAX_TAKEN:
                    await asyncio.sleep(poll_seconds)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the reader; may be called more than once."""
        self._feed.close(self)
