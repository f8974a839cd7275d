"""The event bus: carries events from the engine to its subscribers."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from pellucid.observing.events import (
    LOGGED,
    Event,
    EventRecord,
    Hello,
    Level,
    Note,
    Token,
    Tokens,
    TokenText,
    Warn,
)
from pellucid.observing.observation_budget import ObservationBudget

if TYPE_CHECKING:
    from pellucid.observing.logged_events import Records, StepLog

Subscriber: TypeAlias = Callable[[EventRecord], None]
ListSubscriber: TypeAlias = "Callable[[Sequence[Records]], None]"
OF_TOKENS = (Token, TokenText)
MAX_PENDING = 1024  # times that events wait for a reader: some hundreds of steps
PAY_SECONDS = 0.01  # between two payments of what events have cost
# About what the engine's thread takes to keep what a step leaves: some 150 bytecodes and three calls of native code,
# whose code and data the step has driven out of the caches. No clock measures it.
KEPT_SECONDS = 1e-5

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

    def among(self, batch: "Sequence[Records]") -> "list[Records]":
        """Those of the events that are wanted."""
        if self.tokens_of is None and self.level >= Level.TEXT:
            return [*batch]
        records = [each for each in batch if isinstance(each, EventRecord)]
        if self.level > Level.STAT and len(records) < len(
            batch
        ):  # no logged event is of that level
            from pellucid.observing.logged_events import records_of  # few engines are watched

            records = records_of(batch)
        return [record for record in records if self.covers(record.event)]


class _Subscription(Struct, frozen=True):
    hear: ListSubscriber
    interest: Interest


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
    Until then the engine's thread only keeps what its step had made anyway: as numbers in `step_log` where a step is
    plain, as objects otherwise.

    Args:
        clock: seconds, monotonic; left out, time stands still.

    Attributes:
        active: whether there is a subscriber.
        wants_steps, wants_tokens: whether anyone wants events of levels `STEP` and `TEXT`; each step asks.
        version: another number whenever subscribers have come, gone or changed what they want.
        step: number of the current step, which the engine counts; between two steps, of the last one.
        step_log: takes what plain steps leave; whoever has it keep something says `keep(LOGGED)`. None: somebody wants
            the events of steps at once, nobody wants any, or there is no native code.
        observes_from: the second from which tokens can be observed, if `may_observe` then.
        told: what `step_log` tells of the current step; whoever has it begin one says so.
        keep: as `emit_made`, in one call with all that a note has, but without its bound on what waits: for all that a
            step emits but the last.
        tokens_of: whose tokens anyone wants; None: of all.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.active = self.wants_steps = self.wants_tokens = False
        self.version = 0
        self.step = 0
        self._clock = clock
        self._start = clock()
        self._lock = RLock()
        self._subscriptions: dict[object, _Subscription] = {}  # by subscriber, in order
        self._hearers: tuple[tuple[object, _Subscription], ...] = ()  # the same
        self._level = -1  # the highest that anyone wants
        self.tokens_of: frozenset[str] | None = frozenset()
        self._pending: deque[Note | None] = deque()
        self.keep: Callable[[Note | None], None] = self._keep_and_flush
        self.step_log: StepLog | None = None
        self.told = 0
        self._log: StepLog | None = None  # the same, whoever listens
        self._num_emitted = self._last_us = 0
        self._hello: Hello | None = None
        self._spent = 0.0  # seconds, since `take_spent`
        self._unpaid = 0.0  # seconds, since `observed`
        self._budget = ObservationBudget(self._start)
        self._pays_at = self._start
        self._may_observe = False
        self.observes_from = inf

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
        return self.tokens_of is None or _is_among(request_id, self.tokens_of)

    def may_observe(self, now: float) -> bool:
        """Whether tokens of the step that is computed `now`, in seconds on the clock, can be observed, which somebody
        wants: whether the budget has enough for one. All that events have cost is paid of it."""
        if now >= self._pays_at:
            self._pays_at = now + PAY_SECONDS
            paid, self._unpaid = self._unpaid, 0.0
            self._budget.pay(now, paid)
            self._may_observe = self._level >= Level.TOKEN or not self._budget.is_used_up
            self.observes_from = self._start if self._may_observe else self._pays_at
        return self._may_observe

    def observed(self, request_ids: Iterable[str]) -> set[str]:
        """The generations of a step whose next token is to be observed: at level `TOKEN` each one that is watched, at
        level `TEXT` as many as the budget allows. Ask once in a step that may have some, and `settle_observations`
        when its observations are done."""
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

    @contextmanager
    def spending(self) -> Iterator[None]:
        """The time within counts as spent on events."""
        started = self._clock()
        yield
        self.spend(self._clock() - started)

    def take_spent(self) -> float:
        """Seconds that events have cost since the last call."""
        with self._lock:
            spent, self._spent = self._spent, 0.0
        return spent

    def log_steps_in(self, step_log: "StepLog") -> None:
        """Keeps what plain steps leave in `step_log` from now on."""
        with self._lock:
            self._log = step_log
            self._count()

    def split_step(self, with_blocks: bool = True) -> None:
        """What comes next stands between the tokens of a plain step and its end.

        Args:
            with_blocks: whether the log of steps tells its blocks.
        """
        if self._log is not None and self._log.split(with_blocks):
            self.keep(LOGGED)

    def emit_changes(self, changes: tuple[object, ...]) -> None:
        """Emits `kv` of `BlockChanges` between plain steps."""
        assert self._log is not None
        self._log.add_changes(self._clock(), self.step, changes)
        self.keep(LOGGED)
        self.bound()

    def take_told_tokens(self) -> Tokens | None:
        """The latest tokens, if the log of steps has told them and nobody has asked."""
        return None if self._log is None else self._log.take_told()

    def take_counted_tokens(self) -> Tokens | None:
        """The latest tokens, if the log of steps has counted them and nobody has asked."""
        return None if self._log is None else self._log.take_counted()

    def take_logged_counts(self) -> tuple[int, list[int]]:
        """The tokens of plain steps since the last call, and the microseconds since the token before each."""
        return (0, []) if self._log is None else self._log.take_counts()

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
        interest = Interest.of(level, tokens_of)

        from pellucid.observing.logged_events import records_of  # few engines are watched

        def hear(batch: "Sequence[Records]") -> None:
            for record in records_of(batch):
                subscriber(record)

        return self._subscribe(subscriber, hear, interest)

    def subscribe_lists(self, subscriber: ListSubscriber, interest: Interest) -> Callable[[], None]:
        """As `subscribe`, for one that takes all events of a `flush` in one call, and may be able to wait."""
        return self._subscribe(subscriber, subscriber, interest)

    def _subscribe(
        self, subscriber: object, hear: ListSubscriber, interest: Interest
    ) -> Callable[[], None]:
        with self._lock:
            if subscriber in self._subscriptions:
                raise ValueError("subscriber: has subscribed already")
            self.flush()  # to those who were there
            self._subscriptions[subscriber] = _Subscription(hear, interest)
            self._count()
            if self._hello is not None:
                self.emit(self._hello)
        return lambda: self._leave(subscriber)

    def change_interest(self, subscriber: ListSubscriber, interest: Interest) -> None:
        """Changes the events that a subscriber gets; ignores a subscriber that was removed."""
        with self._lock:
            self.flush()
            if subscriber in self._subscriptions:
                self._subscriptions[subscriber] = _Subscription(subscriber, interest)
                self._count()

    def emit(self, event: Event) -> None:
        """Emits an event, to every subscriber that wants it."""
        self.emit_made(None, _only, event)
        if event.level == Level.STAT:
            self.flush()

    def emit_made(
        self, now: float | None, make: Callable[..., Iterable[Event]], *arguments: object
    ) -> None:
        """Emits events that may wait: `make(*arguments)` makes them when they are handed out, perhaps on another
        thread. Calls come one after the other, in the order of `emit_made`.

        Args:
            now: seconds, on the clock; None: it is read.
            arguments: must stay as they are.
        """
        if now is None:
            now = self._clock()
        self.keep((now, self.step, make, arguments))
        self.bound()

    def bound(self) -> None:
        """Flushes if much is waiting."""
        if len(self._pending) >= MAX_PENDING:
            self.flush()

    def _keep_and_flush(self, note: Note | None) -> None:
        self._pending.append(note)
        self.flush()

    def flush(self) -> None:
        """Makes and hands out all events that were emitted, and counts the time of that. Another thread that does so
        comes to its end first."""
        with self._lock:
            if not self._pending:
                return
            started = self._clock()
            self._unpaid += KEPT_SECONDS * len(self._pending)
            while self._pending:
                self._hand_out(self._make_pending())
            self.spend(self._clock() - started)

    def _make_pending(self) -> "list[Records]":
        records: list[Records] = []
        start, last_us, number = self._start, self._last_us, self._num_emitted
        take, add, stamped = self._pending.popleft, records.append, None
        while self._pending:
            if (note := take()) is LOGGED:
                count = 1
                while self._pending and self._pending[0] is LOGGED:
                    take()
                    count += 1
                assert self._log is not None
                logged = self._log.take(count, number, last_us, start)
                number, last_us, stamped = logged.last_seq + 1, logged.t_us, None
                if logged.num_events:
                    add(logged)
                continue
            time, step, make, arguments = note
            if time != stamped:
                stamped, t_us = time, round((time - start) * 1e6)
                if t_us > last_us:  # threads may be out of turn
                    last_us = t_us
            for event in make(*arguments):
                add(EventRecord(number, last_us, step, event))
                number += 1
        self._last_us, self._num_emitted = last_us, number
        return records

    def _hand_out(self, records: "Sequence[Records]") -> None:
        failed = False
        for subscriber, subscription in self._hearers:
            interest = subscription.interest
            is_all = interest.level >= self._level and interest.tokens_of is None
            try:
                subscription.hear(records if is_all else interest.among(records))
            except Exception:
                _log.exception("a subscriber to events failed and was removed")
                self._drop(subscriber)
                failed = True
        if failed and self.active:
            self.emit(Warn("subscriber_failed", "a subscriber to events failed and was dropped"))

    def _leave(self, subscriber: object) -> None:
        with self._lock:
            self.flush()
            self._drop(subscriber)

    def _drop(self, subscriber: object) -> None:
        with self._lock:
            self._subscriptions.pop(subscriber, None)
            self._count()

    def _count(self) -> None:
        self.active = bool(self._subscriptions)
        self._hearers = tuple(self._subscriptions.items())
        interests = [each.interest for each in self._subscriptions.values()]
        self._level, self.tokens_of = -1, frozenset()
        if interests:
            wanted = union(interests)
            self._level, self.tokens_of = wanted.level, wanted.tokens_of
        self.wants_steps, self.wants_tokens = self.wants(Level.STEP), self.wants(Level.TEXT)
        if self._log is not None:
            self._log.tell_tokens(self.wants_tokens, self.wants_tokens and self.tokens_of is None)
        self.version += 1
        self._pays_at = self._start  # asks the budget anew
        self.observes_from = self._start if self.wants_tokens else inf
        # Whether all who want events above `Level.STAT` can wait.
        can_wait = all(each.can_wait or each.level == Level.STAT for each in interests)
        self.keep = self._pending.append if can_wait else self._keep_and_flush
        self.told = 0
        self.step_log = self._log if can_wait and self.wants_steps else None


def _only(event: Event) -> tuple[Event]:
    return (event,)
