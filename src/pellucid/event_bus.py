"""Carries events from the engine to whoever listens."""

import logging
from collections.abc import Callable
from threading import RLock

from pellucid.events import Event, EventRecord, Hello, Level, Warn

Subscriber = Callable[[EventRecord], None]

_log = logging.getLogger(__name__)


class EventBus:
    """Numbers and stamps events and hands them to subscribers, in order, one at a time.

    Whoever emits asks first, so that nothing is made for nobody:

        if bus.active:
            bus.emit(Preempted(...))

    and `bus.wants(Level.STEP)` for events above `Level.STAT`. `subscribe` and `emit` may be called
    by any thread. Subscribers are called on the thread that emits, usually the engine's: they should
    be done in microseconds, and must not wait for another thread.

    Args:
        clock: seconds, monotonic; left out, time stands still.

    Attributes:
        active: whether anyone listens.
        step: number of the step under way; the engine counts it.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.active = False
        self.step = 0
        self._clock = clock
        self._start = clock()
        self._lock = RLock()
        self._subscribers: dict[Subscriber, Level] = {}  # in order of subscription
        self._level = -1  # the highest that anyone wants
        self._num_emitted = 0
        self._hello: Hello | None = None

    def wants(self, level: Level) -> bool:
        """Whether anyone listens to events of `level`."""
        return self._level >= level

    def to_us(self, time: float) -> int:
        """Microseconds since the start, as events have them, of a time on the bus's clock."""
        return round((time - self._start) * 1e6)

    def introduce(self, hello: Hello) -> None:
        """Says what engine this is: to whoever listens, and to each subscriber as it comes."""
        with self._lock:
            self._hello = hello
            if self.active:
                self.emit(hello)

    def subscribe(self, subscriber: Subscriber, level: Level = Level.STAT) -> Callable[[], None]:
        """Calls `subscriber` with each event up to `level` from now on.

        One that raises is dropped: a log line and a `warn` event say so, and the engine goes on.

        Returns:
            What ends it; may be called more than once.

        Raises:
            ValueError: it has subscribed already.
        """
        with self._lock:
            if subscriber in self._subscribers:
                raise ValueError("subscriber: has subscribed already")
            self._subscribers[subscriber] = level
            self._count()
            if self._hello is not None:
                self.emit(self._hello)
        return lambda: self._drop(subscriber)

    def emit(self, event: Event) -> None:
        """Hands an event to everyone who wants it."""
        with self._lock:
            record = EventRecord(self._num_emitted, self.to_us(self._clock()), self.step, event)
            self._num_emitted += 1
            failed = False
            for subscriber, level in tuple(self._subscribers.items()):
                if event.level <= level:
                    try:
                        subscriber(record)
                    except Exception:
                        _log.exception("a subscriber to events failed and hears no more of them")
                        self._drop(subscriber)
                        failed = True
            if failed and self.active:
                self.emit(
                    Warn("subscriber_failed", "a subscriber to events failed and was dropped")
                )

    def _drop(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.pop(subscriber, None)
            self._count()

    def _count(self) -> None:
        self.active = bool(self._subscribers)
        self._level = max(self._subscribers.values(), default=-1)
