"""The event bus: carries events from the engine to its subscribers."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from threading import RLock

from msgspec import Struct

from pellucid.observing.events import (
    Event,
    EventRecord,
    Hello,
    Level,
    Token,
    TokenText,
    Warn,
)
from pellucid.observing.observation_budget import ObservationBudget

Subscriber = Callable[[EventRecord], None]
OF_TOKENS = (Token, TokenText)
MAX_PENDING = 256  # times that events wait for a reader: some tens of steps

_log = logging.getLogger(__name__)


class Interest(Struct, frozen=True):
    """The events that a subscriber wants."""

    level: Level
    tokens_of: frozenset[str] | None  # None: of all
    can_wait: bool = False  # whoever wants them calls `flush` when it wants them

    @classmethod
    def of(cls, level: Level, tokens_of: Collection[str] | None) -> "Interest":
        return cls(level, None if tokens_of is None else frozenset(tokens_of))

    def covers(self, event: Event) -> bool:
        if self.level < event.level:
            return False
        if self.tokens_of is None or not isinstance(event, OF_TOKENS):
            return True
        return _is_among(event.req, self.tokens_of)


def union(interests: Collection[Interest]) -> Interest:
    """What one or more subscribers want together."""
    watched: frozenset[str] | None = frozenset()
    for interest in interests:
        if interest.level >= Level.TEXT and watched is not None:
            few = interest.tokens_of
            watched = None if few is None else watched | few
    can_wait = all(interest.can_wait for interest in interests)
    return Interest(max(interest.level for interest in interests), watched, can_wait)


def _is_among(completion: str, names: frozenset[str]) -> bool:
    """Whether a completion ("r/0") or its request ("r") is named."""
    return completion in names or completion.partition("/")[0] in names


class EventBus:
    """Numbers and stamps events and hands them to subscribers, in order, one at a time.

    The emitter asks first, so that no event is created without a subscriber:

        if bus.active:
            bus.emit(Preempted(...))

    and `bus.wants(Level.STEP)` for events above `Level.STAT`. `subscribe` and `emit` may be called
    by any thread. Subscribers are called on the thread that emits, usually the engine's: they should
    be done in microseconds, and must neither wait for another thread nor emit.

    Events above `Level.STAT`, of which each step has some, are made and handed out at once only for
    subscribers that cannot wait. For those that can, `flush` does it for many steps together, on the
    thread of the reader that calls it: between two steps, each of which drives Python's code and data
    out of the caches, the same work takes several times as long. Numbers, times and order are the same.

    Args:
        clock: seconds, monotonic; left out, time stands still.

    Attributes:
        active: whether there is a subscriber.
        step: number of the current step, which the engine counts; between two steps, of the last one.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.active = False
        self.step = 0
        self._clock = clock
        self._start = clock()
        self._lock = RLock()
        self._subscribers: dict[Subscriber, Interest] = {}  # in order of subscription
        self._hearers: tuple[tuple[Subscriber, Interest], ...] = ()  # the same
        self._level = -1  # the highest that anyone wants
        self._watched: frozenset[str] | None = frozenset()  # whose tokens; None: all
        self._can_wait = False  # whether all who want events above `Level.STAT` can
        self._pending: deque[tuple[int, int, Iterable[Event]]] = deque()  # t_us, step, events
        self._num_emitted = self._last_us = 0
        self._hello: Hello | None = None
        self._spent = 0.0  # seconds, since `take_spent`
        self._unpaid = 0.0  # seconds, since `observed`
        self._budget = ObservationBudget(self._start)

    @property
    def last_seq(self) -> int:
        """Number of the last event; -1 before the first."""
        with self._lock:
            self.flush()
            return self._num_emitted - 1

    @property
    def hello(self) -> Hello | None:
        """What every new subscriber gets first; None: the engine has not introduced itself."""
        return self._hello

    def wants(self, level: Level) -> bool:
        """Whether anyone listens to events of `level`."""
        return self._level >= level

    def watches(self, request_id: str) -> bool:
        """Whether anyone listens to the tokens of a generation."""
        if self._level < Level.TEXT:
            return False
        return self._watched is None or _is_among(request_id, self._watched)

    def observed(self, request_ids: Iterable[str]) -> set[str]:
        """The generations of a step whose next token is to be observed: at level `TOKEN` each one that is watched, at
        level `TEXT` as many as the budget allows. All that events have cost is paid of that. Ask once in a step, and
        `settle_observations` when its observations are done."""
        paid, self._unpaid = self._unpaid, 0.0
        self._budget.pay(self._clock(), paid)
        if self._level < Level.TOKEN and self._budget.is_empty:
            return set()
        watched = filter(self.watches, request_ids)
        if self._level >= Level.TOKEN:
            return set(watched)
        return {each for each in watched if self._budget.reserve()}

    def settle_observations(self, num_observed: int, seconds: float) -> None:
        """Tells what the observations of a step have cost."""
        self.spend(seconds)
        self._budget.settle(num_observed, seconds)

    def to_us(self, time: float) -> int:
        """Microseconds since the start, as events have them, of a time on the bus's clock."""
        return round((time - self._start) * 1e6)

    def spend(self, seconds: float) -> None:
        """Adds time that was spent on events outside of `emit`, for subscribers."""
        with self._lock:
            self._spent += seconds
            self._unpaid += seconds

    def take_spent(self) -> float:
        """Seconds that events have cost since the last call."""
        with self._lock:
            spent, self._spent = self._spent, 0.0
        return spent

    def introduce(self, hello: Hello) -> None:
        """Sends `hello` to all subscribers, and later to each new one."""
        with self._lock:
            self._hello = hello
            if self.active:
                self.emit(hello)

    def repeat_hello(self) -> None:
        """Sends `hello` again, for a new subscriber."""
        with self._lock:
            if self._hello is not None and self.active:
                self.emit(self._hello)

    def subscribe(
        self,
        subscriber: Subscriber,
        level: Level = Level.STAT,
        tokens_of: Collection[str] | None = None,
    ) -> Callable[[], None]:
        """Calls `subscriber` with each event up to `level` from now on.

        A subscriber that raises is removed: a log line and a `warn` event say so, and the engine continues.

        Args:
            level: the highest level of the events that it gets.
            tokens_of: at level `TOKEN`, of which completions ("r/0") or requests ("r") it wants the
                tokens, each of which costs something; left out, of all.

        Returns:
            A function that ends the subscription; it may be called more than once.

        Raises:
            ValueError: it has subscribed already.
        """
        return self.subscribe_to(subscriber, Interest.of(level, tokens_of))

    def subscribe_to(self, subscriber: Subscriber, interest: Interest) -> Callable[[], None]:
        """As `subscribe`, for one that may be able to wait."""
        with self._lock:
            if subscriber in self._subscribers:
                raise ValueError("subscriber: has subscribed already")
            self.flush()  # to those who were there
            self._subscribers[subscriber] = interest
            self._count()
            if self._hello is not None:
                self.emit(self._hello)
        return lambda: self._leave(subscriber)

    def change_interest(self, subscriber: Subscriber, interest: Interest) -> None:
        """Changes the events that a subscriber gets; ignores a subscriber that was removed."""
        with self._lock:
            self.flush()
            if subscriber in self._subscribers:
                self._subscribers[subscriber] = interest
                self._count()

    def emit(self, event: Event) -> None:
        """Emits an event, to every subscriber that wants it."""
        self._emit((event,), event.level > Level.STAT)

    def emit_made(self, made: Iterable[Event]) -> None:
        """Emits events above `Level.STAT`, all of now, that `made` makes one after the other when they are handed
        out: perhaps later, on another thread."""
        self._emit(made, may_wait=True)

    def _emit(self, made: Iterable[Event], may_wait: bool) -> None:
        self._pending.append((self.to_us(self._clock()), self.step, made))
        if not (may_wait and self._can_wait) or len(self._pending) >= MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Makes and hands out all events that were emitted, and counts the time of that. Another thread that does so
        comes to its end first."""
        with self._lock:
            if not self._pending:
                return
            started = self._clock()
            while self._pending:
                t_us, step, made = self._pending.popleft()
                self._last_us = t_us = max(t_us, self._last_us)  # threads may be out of turn
                for event in made:
                    self._hand_out(event, t_us, step)
            self.spend(self._clock() - started)

    def _hand_out(self, event: Event, t_us: int, step: int) -> None:
        record = EventRecord(self._num_emitted, t_us, step, event)
        self._num_emitted += 1
        failed = False
        for subscriber, interest in self._hearers:
            if interest.covers(event):
                try:
                    subscriber(record)
                except Exception:
                    _log.exception("a subscriber to events failed and was removed")
                    self._drop(subscriber)
                    failed = True
        if failed and self.active:
            warning = Warn("subscriber_failed", "a subscriber to events failed and was dropped")
            self._hand_out(warning, t_us, step)

    def _leave(self, subscriber: Subscriber) -> None:
        with self._lock:
            self.flush()
            self._drop(subscriber)

    def _drop(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.pop(subscriber, None)
            self._count()

    def _count(self) -> None:
        self.active = bool(self._subscribers)
        self._hearers = tuple(self._subscribers.items())
        self._level, self._watched = -1, frozenset()
        if self.active:
            wanted = union(self._subscribers.values())
            self._level, self._watched = wanted.level, wanted.tokens_of
        self._can_wait = all(
            each.can_wait or each.level == Level.STAT for each in self._subscribers.values()
        )
